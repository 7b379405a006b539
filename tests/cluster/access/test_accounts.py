"""cluster/access/accounts.py and the YAML of ACL 1.0."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from newinputs import new_inputs

from tandemmq.cluster.access.accounts import Accounts, host_test, joined, read_file
from tandemmq.cluster.access.rights import Action, Need, ResourceKind
from tandemmq.cluster.broker.access.plainfiles import EditRefused, PlainFiles

SAMPLE = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: 123456789
    whiteRemoteAddress: 192.168.1.{1,2}
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms: [topicA=DENY, topicB=PUB|SUB, topicC=SUB, "topicD=PUB | SUB"]
    groupPerms: [groupA=DENY, groupB=SUB]
  - accessKey: rocketmq2
    secretKey: 0123456701
    admin: true
"""


@pytest.mark.parametrize(
    ("pattern", "host", "meant"),
    [
        ("*", "10.0.0.1", True), ("*.*.*.*", "10.0.0.1", True), ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False), ("10.0.0.*", "10.0.0.77", True), ("10.0.1-3.*", "10.0.2.9", True),
        ("10.0.1-3.*", "10.0.4.9", False), ("10.0.0.{1,2}", "10.0.0.2", True), ("10.0.0.{1,2}", "10.0.0.3", False),
        ("10.0.0.1,10.0.0.2", "10.0.0.2", True), ("*:*:*:*:*:*:*:*", "::1", True), ("::1", "::1", True),
        ("5:5:5:5:5:5:5:{1,a}", "5:5:5:5:5:5:5:a", True), ("10.0.0.*", "::1", False),
    ],
)  # fmt: skip
def test_address_patterns(pattern: str, host: str, meant: bool) -> None:
    assert host_test(pattern)(host) is meant


@pytest.mark.parametrize(
    "pattern", ["1.2.3", "10.0.0.256", "10.0.0.a", "10.0.0.{1,x}", "10.0.0.5-1", "a:b"]
)
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="Netaddress examine"):
        host_test(pattern)


def sample() -> Accounts:
    return joined([read_file(yaml.safe_load(SAMPLE))])[0]


@pytest.mark.parametrize(
    ("kind", "name", "action", "allowed"),
    [
        ("TOPIC", "topicA", "PUB", False), ("TOPIC", "topicB", "PUB", True), ("TOPIC", "topicC", "PUB", False),
        ("TOPIC", "topicC", "SUB", True), ("TOPIC", "topicC", "GET", True), ("TOPIC", "topicD", "SUB", False),
        ("TOPIC", "other", "SUB", False), ("GROUP", "groupA", "SUB", False), ("GROUP", "groupB", "SUB", True),
        ("GROUP", "other", "SUB", True), ("TOPIC", "topicB", "CREATE", False), ("CLUSTER", "c", "GET", False),
        ("TOPIC", "RMQ_SYS_TRACE_TOPIC", "PUB", True), ("TOPIC", "RMQ_SYS_TRACE_TOPIC", "SUB", False),
        ("GROUP", "groupB", "DELETE", False),
    ],
)  # fmt: skip
def test_what_an_account_may(kind: str, name: str, action: str, allowed: bool) -> None:
    need = Need(ResourceKind[kind], name, frozenset({Action[action]}))
    accounts = sample().by_key
    assert (accounts["RocketMQ"].refusal(need) is None) is allowed
    assert accounts["rocketmq2"].refusal(need) is None
    assert accounts["RocketMQ"].refusal(Need(ResourceKind[kind], None, frozenset({Action.LIST})))


def test_keys_are_scalars_of_yaml_1_1_and_odd_permissions_deny() -> None:
    found = read_file(yaml.safe_load(SAMPLE))
    assert sample().by_key["rocketmq2"].secret_key == str(0o123456701)
    assert len(found.notes) == 1 and "topicD" in found.notes[0]
    assert sample().is_white("10.10.103.9") and not sample().is_white("10.10.104.9")
    assert "123456789" not in repr(found)


@pytest.mark.parametrize(
    "text",
    ["[1, 2]", "accounts: 7", "accounts: [{accessKey: short, secretKey: short}]", "accounts: [7]",
     "accounts: [{accessKey: longenough, secretKey: longkeys, topicPerms: [x]}]", "globalWhiteRemoteAddresses: [1.2]"],
)  # fmt: skip
def test_a_file_that_must_not_be_used_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_file(yaml.safe_load(text))


def opened(tmp_path: Path) -> tuple[PlainFiles, list[Accounts]]:
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(SAMPLE)
    seen: list[Accounts] = []
    files = PlainFiles(path, seen.append)
    files.load()
    return files, seen


async def test_files_are_reloaded_and_one_that_cannot_be_read_leaves_the_accounts(
    tmp_path: Path,
) -> None:
    files, seen = opened(tmp_path)
    assert list(seen[-1].by_key) == ["RocketMQ", "rocketmq2"]
    for broken in (
        "accounts: [",
        "accounts: 7",
        "x" * (1 << 20) + "y",
        "\x00",
        "!!python/object:os.system x",
    ):
        files.path.write_text(broken)
        await files.look()
        assert len(seen) == 1, broken
    assert files.failures == 5
    files.path.write_text(SAMPLE.replace("RocketMQ", "Renamed1"))
    await files.look()
    assert list(seen[-1].by_key) == ["Renamed1", "rocketmq2"]
    more = files.path.parent / "acl" / "deep"
    more.mkdir(parents=True)
    (more / "b.yaml").write_text(
        "accounts: [{accessKey: Renamed1, secretKey: otherkey1, admin: true}]"
    )
    await files.look()
    assert seen[-1].by_key["Renamed1"].admin  # files below acl/ come first
    (more / "b.yaml").unlink()
    await files.look()
    assert not seen[-1].by_key["Renamed1"].admin
    files.path.write_text("")
    await files.look()
    assert not seen[-1].by_key  # no accounts: nobody


async def test_accounts_are_changed_by_request_and_at_once(tmp_path: Path) -> None:
    files, seen = opened(tmp_path)
    files.path.chmod(0o640)
    given = {
        "accessKey": "freshkey",
        "secretKey": "freshsecret",
        "topicPerms": ["t=PUB"],
        "admin": False,
    }
    await files.put_account(given)
    assert seen[-1].by_key["freshkey"].topics == {"t": frozenset({Action.PUB})}
    await files.put_account({"accessKey": "RocketMQ", "secretKey": "changed123"})
    assert seen[-1].by_key["RocketMQ"].secret_key == "changed123"
    assert "topicB" in seen[-1].by_key["RocketMQ"].topics  # what was not given stays
    assert await files.delete_account("freshkey") and not await files.delete_account("freshkey")
    await files.put_white(["10.0.0.*"])
    assert seen[-1].is_white("10.0.0.5") and not seen[-1].is_white("10.10.103.9")
    assert files.versions()[str(files.path)]["counter"] == 4
    assert files.path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"accessKey": "k", "secretKey": "secretsecret"}, "length should longer than 6"),
        ({"topicPerms": ["t1=FOO"]}, "Parse resource permission error for t1=FOO"),
        ({"topicPerms": ["t1"]}, "Parse Resource format error for t1."),
        ({"whiteRemoteAddress": "1.2.3"}, "Netaddress examine Exception netaddress is 1.2.3"),
        ({"defaultTopicPerm": "sub"}, "defaultTopicPerm"),
    ],
)
async def test_a_change_that_makes_no_sense_is_refused_and_changes_nothing(
    tmp_path: Path, given: dict[str, object], words: str
) -> None:
    files, seen = opened(tmp_path)
    with pytest.raises(EditRefused) as caught:
        await files.put_account({"accessKey": "freshkey", "secretKey": "secretsecret", **given})
    assert words in str(caught.value) and "secretsecret" not in str(caught.value)
    with pytest.raises(EditRefused):
        await files.put_white(["1.2.3"])
    with pytest.raises(EditRefused):
        await files.put_white(["*"], "/etc/passwd")
    assert len(seen) == 1 and files.path.read_text() == SAMPLE


async def test_files_of_noise_change_nothing_and_crash_nothing(tmp_path: Path) -> None:
    """20,000 damaged files: each is read as accounts, or refused as a whole and those of before stay."""
    rng = new_inputs()
    whole = SAMPLE.encode()
    files, seen = opened(tmp_path)
    bad = 0
    for _ in range(20_000):
        data = bytearray(whole[: rng.randrange(40, 220)] if rng.random() < 0.5 else whole[:160])
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.choice(b"\0\t\n -:[]{}&*!|>%@`'\"#,?=aA0\xff")
        try:
            tree = yaml.load(bytes(data), Loader=FAST)
        except (yaml.YAMLError, ValueError):
            bad += 1
            continue
        try:
            read_file(tree)
        except ValueError:
            bad += 1
    assert bad > 1_000
    for _ in range(200):  # and through the file itself
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(3)] = bytes(
                rng.choices(b"\0\t\n -:[]{}&*!|>%@`'\"#,?=aA0", k=2)
            )
        told, failed, before = len(seen), files.failures, seen[-1]
        files.path.write_bytes(data)
        await files.look()
        if files.failures > failed:
            assert len(seen) == told and seen[-1] is before
    assert 10 < files.failures < 190
    files.path.write_text(SAMPLE)
    await files.look()
    assert list(seen[-1].by_key) == ["RocketMQ", "rocketmq2"]


FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
