"""What Spark's driver and executors do with a cluster that demands TLS and keys: the same code, without a Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from certificates import Authority
from tls_cluster import start, tls_settings

from tandemmq import ClientError
from tandemmq.chaos.ports import LOOPBACK
from tandemmq.chaos.servers import Broker, NameServer

pyarrow = pytest.importorskip("pyarrow", reason="needs the spark extra")

from tandemmq.spark.errors import ClusterAway, RowRefused  # noqa: E402
from tandemmq.spark.options import read_options, write_options  # noqa: E402
from tandemmq.spark.outgoing import RowIds, RowReader  # noqa: E402
from tandemmq.spark.reading import Reading, read_task  # noqa: E402
from tandemmq.spark.sending import send_rows  # noqa: E402

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The options that reach a name server and a broker which demand them."""
    root = tmp_path_factory.mktemp("guarded")
    authority = Authority(root / "tls")
    names_tls, broker_tls = (
        tls_settings(authority, authority.sign(name, LOOPBACK), "none") for name in ("names", "b")
    )
    user = root / "root.json"
    user.write_text('{"username":"root0001","password":"rootpw12"}')
    access = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUserFile": user,
    }
    names = NameServer(root / "names", names_tls)
    broker = Broker(root / "broker", names.address, settings={**broker_tls, **access})
    with ExitStack() as stack:
        for process in (names, broker):
            stack.enter_context(process)
            start(process)
        yield {
            "namesrv": names.address,
            "accessKey": "root0001",
            "secretKey": "rootpw12",
            "caFile": str(authority.certificate),
            "retryTimeoutMs": "10000",
        }


def write(options: dict[str, str], rows: list[dict[str, str]]) -> int:
    """As one task does."""
    given = write_options({**options, "topic": "Orders"})
    batch = pyarrow.RecordBatch.from_pylist(rows)
    reader = RowReader(given.topic, given.drops_reserved, RowIds("job", 0), 0)
    return send_rows(iter([batch]), given, reader)


def read(options: dict[str, str]) -> list[bytes]:
    """As a driver does, and then its executors, which get pickled values."""
    given = read_options({**options, "topics": "Orders"}, streaming=False)
    reading = Reading(given)
    tasks = pickle.loads(pickle.dumps((given, reading.tasks(reading.batch()))))  # noqa: S301 - ours
    batches = [batch for task in tasks[1] for batch in read_task(tasks[0], task)]
    return sorted(body for batch in batches for body in batch.column("body").to_pylist())


def test_rows_are_sent_and_read_with_keys_over_tls(reached: dict[str, str], tmp_path: Path) -> None:
    assert write(reached, [{"body": f"{number}"} for number in range(30)]) == 30
    assert read(reached) == sorted(b"%d" % number for number in range(30))
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: root0001\nsecretKey: rootpw12\n")
    by_file = {k: v for k, v in reached.items() if k not in ("accessKey", "secretKey")}
    assert len(read({**by_file, "credentialsFile": str(file)})) == 30


def test_wrong_key_is_refused_at_once_and_told_in_words(reached: dict[str, str]) -> None:
    wrong = {**reached, "secretKey": "wrong-secret"}
    with pytest.raises(ClientError, match="check signature failed") as refused:
        read(wrong)
    assert "wrong-secret" not in str(refused.value)
    with pytest.raises(RowRefused, match=r"row 0 of partition 0 .*check signature failed"):
        write(wrong, [{"body": "x"}])


def test_plain_text_to_a_cluster_that_demands_tls_is_an_error_in_time(
    reached: dict[str, str],
) -> None:
    plain = {k: v for k, v in reached.items() if k != "caFile"}
    with pytest.raises(ClusterAway, match="no answer within 500 ms"):
        read({**plain, "retryTimeoutMs": "500"})
