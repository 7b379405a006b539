"""`tandem audit`, as a shell sees it: results, exit codes, files left behind, sentences for bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import storekit
from storekit import LogFiles

from tandemmq.command.cli import main
from tandemmq.storage import StorageConfig, open_store

SLOTS = ("--index-slots", str(storekit.INDEX_SLOTS))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal stores."""
    master = storekit.write_store(tmp_path / "master", 91, 300)
    return master, storekit.copy(master, tmp_path / "slave")


def run(*words: object) -> int:
    return main(["audit", *map(str, words)])


def damage(root: Path, number: int) -> storekit.Place:
    place = storekit.places(root)[number]
    LogFiles(root).flip(place.body[0])
    return place


def test_equal_replicas_are_one_green_sentence_and_zero(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", *pair, *SLOTS) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("slave equals master: 300 records, ")
    assert shown.count("\n") == 1


def test_divergence_ends_with_one_and_names_the_class(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    place = damage(pair[1], 40)
    assert run("run", *pair, *SLOTS) == 1
    shown = capsys.readouterr().out
    assert "slave differs from master: 1 CRC_SLAVE" in shown
    assert f"{place.offset}-{place.end}" in shown


def test_lag_from_the_threshold_on_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    master = storekit.write_store(tmp_path / "master", 92, 200)
    slave = storekit.write_store(tmp_path / "slave", 92, 150)
    assert run("run", master, slave, *SLOTS) == 0
    assert "bytes behind" in capsys.readouterr().out
    assert run("run", master, slave, *SLOTS, "--lag-warn", "1k") == 2


def test_json_holds_every_row(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    damage(pair[1], 40)
    assert run("run", *pair, *SLOTS, "--json") == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["verdict"] == "divergent"
    assert [row["class"] for row in summary["divergence_rows"]] == ["CRC_SLAVE"]
    assert summary["divergence_rows"][0]["fields"] == "body"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "the following arguments are required"),
        (("run", "MASTER", "nowhere"), "nowhere is not a directory"),
        (("run", "MASTER"), "needs a reference and at least one replica"),
        (("run", "MASTER", "EMPTY"), "is not a store: it holds no commitlog directory"),
        (("run", "MASTER", "SLAVE", "--until", "99999999"), "is beyond the log of"),
        (("run", "MASTER", "SLAVE", "--levels", "4"), "levels are 1, 2, 3"),
        (("run", "MASTER", "SLAVE", "--until", "-5"), "--until"),
        (("run", "MASTER", "SLAVE", "--namesrv", "127.0.0.1:9876"), "not both"),
        (("run", "--namesrv", "nonsense"), "nonsense"),
        (("run", "MASTER", "SLAVE", "--token-file", "nowhere"), "--token-file nowhere: No such"),
        (("run", "MASTER", "SLAVE", "--ca", "nowhere"), "--ca nowhere: No such file"),
        (("run", "http://127.0.0.1:0x", "SLAVE"), "is no address of a broker"),
        (("run", "http://127.0.0.1:9/commitlog", "SLAVE"), "give http://HOST:PORT"),
        (("explain", "EMPTY", "0"), "holds no audit_run.parquet"),
        (("compare", "nowhere.parquet", "there.parquet"), "is no digest file"),
        (("repair", "nowhere"), "is no directory of a run"),
    ],
)
def test_bad_input_is_one_sentence_and_64(
    pair: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    sentence: str,
) -> None:
    (tmp_path / "empty").mkdir()
    known = {"MASTER": str(pair[0]), "SLAVE": str(pair[1]), "EMPTY": str(tmp_path / "empty")}
    try:
        code = run(*[known.get(word, word) for word in words])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    assert code == 64
    assert sentence in capsys.readouterr().err


def test_stores_of_other_sizes_or_brokers_are_refused(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = storekit.write_store(tmp_path / "wide", 91, 300, segment_bytes=1 << 20)
    assert run("run", pair[0], wide) == 64
    assert "not replicas of one broker: segments of" in capsys.readouterr().err
    stranger = storekit.write_store(tmp_path / "stranger", 17, 300)
    assert run("run", pair[0], stranger) == 64
    assert "share not one record" in capsys.readouterr().err
    (pair[0] / "brokerIdentity").write_text("c#a#1", encoding="utf-8")
    (pair[1] / "brokerIdentity").write_text("c#b#2", encoding="utf-8")
    assert run("run", *pair) == 64
    assert "c#a" in capsys.readouterr().err


def test_file_that_belongs_to_no_such_log_is_refused(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (pair[1] / "commitlog" / f"{1000:020d}").write_bytes(bytes(4096))
    assert run("run", *pair) == 64
    assert "files of two sizes are mixed" in capsys.readouterr().err


def test_file_that_cannot_be_read_is_no_result(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.preadv", refused)
    assert run("run", *pair) == 3
    assert re.search(r"cannot read .*\d{20}: Permission denied", capsys.readouterr().err)


def test_tables_report_and_metrics_are_left_behind(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = damage(pair[1], 40)
    out, prom = tmp_path / "audits", tmp_path / "audit.prom"
    assert run("run", *pair, *SLOTS, "--out", out, "--metrics", prom) == 1
    (directory,) = out.iterdir()
    assert {file.stem for file in directory.iterdir()} == {
        "audit_run", "block_digest", "divergence", "finding",
    }  # fmt: skip
    text = prom.read_text("utf-8")
    assert 'tandem_audit_divergences{class="CRC_SLAVE",replica="slave"} 1\n' in text
    assert 'tandem_audit_divergences{class="FORK",replica="slave"} 0\n' in text
    assert 'tandem_audit_exit_code{reference="master"} 1\n' in text
    assert 'tandem_audit_last_success_timestamp_seconds{reference="master"}' in text
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \S+ .+|[a-z_]+(\{[^}]*\})? -?[0-9.e+]+", line), line
    capsys.readouterr()

    assert run("explain", directory, place.body[0]) == 1
    shown = capsys.readouterr().out
    assert f"CRC_SLAVE (critical) of slave in {place.offset}-{place.end}" in shown
    assert "checksum right" in shown and "checksum WRONG" in shown
    assert run("explain", directory, place.end) == 0
    assert "found nothing" in capsys.readouterr().out
    assert run("explain", directory, 1 << 40) == 64

    assert run("report", directory) == 0
    page = (directory / "report.html").read_text("utf-8")
    assert page.count("<svg") >= 3
    assert "CRC_SLAVE" in page and "<script" not in page and "http" not in page
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(picture)


def test_textfile_keeps_the_last_success_while_audits_fail(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prom = tmp_path / "audit.prom"
    assert run("run", *pair, *SLOTS, "--metrics", prom) == 0
    success = prom.read_text("utf-8").splitlines()[-1]
    assert success.startswith("tandem_audit_last_success_timestamp_seconds{")
    assert 'tandem_audit_incomplete{reference="master"} 0\n' in prom.read_text("utf-8")

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.preadv", refused)
    for _ in range(2):
        assert run("run", *pair, "--metrics", prom) == 3
        text = prom.read_text("utf-8")
        assert success in text.splitlines()
        assert 'tandem_audit_incomplete{reference="master"} 1\n' in text
        assert 'tandem_audit_exit_code{reference="master"} 3\n' in text


def test_report_escapes_what_topics_are_called(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from tandemmq.replication.audit.report import html_page
    from tandemmq.replication.audit.tables import Finding

    outcome = storekit.run(*pair)
    outcome.findings.append(
        Finding("r", "slave", "cq_missing", "critical", "<b>&", 0, 1, 2, "", "<script>")
    )
    page = html_page(outcome)
    assert "<script" not in page and "<b>" not in page
    assert "&lt;b&gt;&amp;" in page


def test_digests_of_two_hosts_compare_without_their_logs(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = LogFiles(pair[1])
    last = max(p.end for p in storekit.places(pair[0]) if p.offset < log.segment_bytes)
    log.write(log.segment_bytes - 3, b"pad")  # padding is in no digest
    assert last + 8 <= log.segment_bytes
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for store, file in zip(pair, files, strict=True):
        assert run("digest", store, "--out", file, "--max-mb-s", 500) == 0
    assert run("compare", *files) == 0
    damage(pair[1], 200)
    assert run("digest", pair[1], "--out", files[1]) == 0
    capsys.readouterr()
    assert run("compare", *files, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    (piece,) = found["differing"]["slave"]
    place = storekit.places(pair[0])[200]
    assert piece[0] <= place.offset < piece[1]


# --- repair ---------------------------------------------------------------------------------------


def audited(pair: tuple[Path, Path], tmp_path: Path) -> Path:
    run("run", *pair, *SLOTS, "--out", tmp_path / "audits")
    return max((tmp_path / "audits").iterdir())


def test_repair_fetches_damaged_ranges_and_audits_again(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = storekit.places(pair[0])
    sound = {file.name: file.read_bytes() for file in (pair[0] / "commitlog").iterdir()}
    log = LogFiles(pair[1])
    damage(pair[1], 40)
    log.write(places[90].offset + 20, bytes(2000))
    gone = log.starts[1]
    log.path(gone).unlink()
    damaged = log.read(places[40].offset, places[40].end)
    directory = audited(pair, tmp_path)
    assert run("repair", directory) == 1
    assert "--yes replaces" in capsys.readouterr().out
    assert not log.path(gone).exists()
    assert run("repair", directory, "--yes") == 0
    assert "slave equals master" in capsys.readouterr().out
    assert {f.name: f.read_bytes() for f in (pair[1] / "commitlog").iterdir()} == sound
    kept = directory / "replaced" / "slave" / f"{places[40].offset:020d}-{places[40].end:020d}"
    assert kept.read_bytes() == damaged


def test_repair_mends_the_master_from_the_slave(pair: tuple[Path, Path], tmp_path: Path) -> None:
    damage(pair[0], 40)
    directory = audited(pair, tmp_path)
    assert run("repair", directory, "--yes") == 0


def test_repair_never_decides_which_readable_side_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    master = storekit.write_store(tmp_path / "master", 93, 200)
    slave = storekit.write_store(tmp_path / "slave", 93, 200, fork_at=150, fork_seed=1)
    before = {file.name: file.read_bytes() for file in (slave / "commitlog").iterdir()}
    directory = audited((master, slave), tmp_path)
    assert run("repair", directory, "--yes") == 1
    assert "bytes cannot tell which side is right" in capsys.readouterr().out
    assert {f.name: f.read_bytes() for f in (slave / "commitlog").iterdir()} == before


@pytest.mark.parametrize("damaged", ["master", "slave"])
def test_repair_never_replaces_a_history_because_of_damage_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: str
) -> None:
    """A few broken bytes in a forked log are one divergence with the fork."""
    stores = {
        "master": storekit.write_store(tmp_path / "master", 93, 200),
        "slave": storekit.write_store(tmp_path / "slave", 93, 200, fork_at=100, fork_seed=1),
    }
    places = storekit.places(stores[damaged])
    LogFiles(stores[damaged]).write(places[120].offset, bytes(2000))
    before = {file.name: file.read_bytes() for file in (stores[damaged] / "commitlog").iterdir()}
    directory = audited((stores["master"], stores["slave"]), tmp_path)
    assert run("repair", directory, "--yes") == 1
    shown = capsys.readouterr().out
    assert "cannot repair GARBAGE" in shown
    assert "holds a sound message at" in shown or "holds no record at" in shown
    after = {file.name: file.read_bytes() for file in (stores[damaged] / "commitlog").iterdir()}
    assert after == before


def test_repair_mends_a_record_of_which_only_the_end_is_damaged(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its body is sound; what is broken begins in its properties: still the same message."""
    places = storekit.places(pair[0])
    place = next(p for p in places[60:] if p.end - p.body[1] > 60)
    LogFiles(pair[1]).write(place.end - 20, b"\xee" * 900)
    directory = audited(pair, tmp_path)
    assert run("repair", directory, "--yes") == 0


@pytest.mark.parametrize("reason", ["running", "epochs", "source damaged since"])
def test_repair_refuses_what_it_cannot_vouch_for(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    damage(pair[1], 40)
    directory = audited(pair, tmp_path)
    if reason == "running":
        (pair[1] / "abort").write_text("1", encoding="utf-8")
    elif reason == "epochs":
        (pair[0] / "epochFileCheckpoint").write_text("1\n0\n1-0\n", encoding="ascii")
        (pair[1] / "epochFileCheckpoint").write_text("1\n0\n2-0\n", encoding="ascii")
    else:
        damage(pair[0], 40)
    assert run("repair", directory, "--yes") == 1
    shown = capsys.readouterr().out
    assert "cannot repair CRC_SLAVE" in shown
    assert "replaced" not in shown.split("cannot repair")[0]


def test_repair_stays_away_from_a_store_in_use(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from tandemmq.replication.audit.errors import BadInput
    from tandemmq.replication.audit.repair import apply_repair, load_run, plan_repair

    damage(pair[1], 40)
    directory = audited(pair, tmp_path)
    known, rows = load_run(directory)
    steps = plan_repair(known, rows)
    assert [step.why_not for step in steps] == [""]
    # lockf locks belong to a process: another one must hold it
    import subprocess
    import sys

    script = (
        "import fcntl,sys\nf=open(sys.argv[1],'a+b')\nfcntl.lockf(f,fcntl.LOCK_EX,1,0)\n"
        "print('held',flush=True)\nsys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(pair[1] / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdin is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BadInput, match="in use by a broker"):
            apply_repair(known, steps, tmp_path / "kept")
    finally:
        holder.communicate()


def test_audit_never_writes_into_a_store(pair: tuple[Path, Path]) -> None:
    before = {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for root in pair
        for path in root.rglob("*")
    }
    assert run("run", *pair, *SLOTS) == 0
    after = {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for root in pair
        for path in root.rglob("*")
    }
    assert after == before


def test_store_that_a_broker_appended_to_meanwhile_lags_only(pair: tuple[Path, Path]) -> None:
    import random

    import auditkit

    config = StorageConfig(
        root=str(pair[0]), segment_bytes=65_536, queue_segment_bytes=2000,
        index_slots=storekit.INDEX_SLOTS, index_entries=20_000,
    )  # fmt: skip
    rng = random.Random(1)
    with open_store(config, storekit.TestClock()) as store:
        for _ in range(20):
            store.put(auditkit.draft(rng))
        outcome = storekit.run(*pair)  # its index and queues are behind, its abort file is there
    assert [row.kind for row in outcome.divergences] == ["LAG"]
    assert outcome.exit_code == 0


def test_an_audit_that_cannot_even_begin_is_in_the_metrics(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    prom = tmp_path / "audit.prom"
    assert run("run", *pair, *SLOTS, "--metrics", prom) == 0
    assert 'tandem_audit_incomplete{reference="master"} 0' in prom.read_text()
    nobody = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    assert run("run", *nobody, "--metrics", prom) == 3
    text = prom.read_text()
    assert 'tandem_audit_incomplete{reference="master"} 1' in text
    assert 'tandem_audit_last_success_timestamp_seconds{reference="master"}' in text
