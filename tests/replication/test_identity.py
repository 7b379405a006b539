"""brokerIdentity, as RocketMQ writes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.replication.errors import CorruptIdentityFile
from tandemmq.replication.identity import Identity, decode_identity


def test_both_files_come_back() -> None:
    plain = Identity("GoldCluster", "ctl-a", 2)
    assert plain.encode() == b"GoldCluster#ctl-a#2"
    assert decode_identity(plain.encode() + b"\n") == plain
    applying = Identity("GoldCluster", "ctl-a", 1, "10.9.9.1:29911;1795260630403")
    assert applying.encode() == b"GoldCluster#ctl-a#1#10.9.9.1:29911;1795260630403"
    assert decode_identity(applying.encode()) == applying


@pytest.mark.parametrize(
    "content", [b"", b"a#b", b"a#b#x", b"a#b#0", b"#b#1", b"a#b#1#c#d", b"\xff"]
)
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptIdentityFile):
        decode_identity(content)


@given(st.binary(max_size=60))
def test_no_content_breaks_the_reader(content: bytes) -> None:
    try:
        decode_identity(content)
    except CorruptIdentityFile:
        return
