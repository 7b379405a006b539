"""Which implementation the rest of the store gets."""

from __future__ import annotations

import os

import tandemmq.storage.codec as codec
import tandemmq.storage.record as readable
import tandemmq.storage.tail


def test_every_name_of_the_codec_is_documented_in_the_readable_form() -> None:
    for name in set(codec.__all__) - {"COMPILED"}:
        assert hasattr(readable, name) or hasattr(tandemmq.storage.tail, name), name


def test_compiled_functions_are_picked_together_or_not_at_all() -> None:
    doubled = ["decode", "decode_properties", "encode", "get_property", "java_hash", "scan"]
    doubled += ["split_batch", "tags_code"]
    modules = {getattr(codec, name).__module__ for name in doubled}
    tails = {codec.LogTail.__module__, codec.QueueTail.__module__}
    assert modules == {"tandemmq.storage._record" if codec.COMPILED else "tandemmq.storage.record"}
    assert tails == {"tandemmq.storage._record" if codec.COMPILED else "tandemmq.storage.tail"}


def test_pure_python_can_be_asked_for() -> None:
    assert codec.COMPILED is not bool(os.environ.get("TANDEM_PURE_PYTHON"))
