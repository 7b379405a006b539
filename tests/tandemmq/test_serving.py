"""tandemmq/command/serving.py: what an operator reads when a server cannot start."""

from __future__ import annotations

import errno

import pytest

from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.serving import clear_errors


def test_a_start_on_a_full_disk_says_where_to_make_room() -> None:
    words = "No space left on device: make room where"
    with pytest.raises(CommandFailed, match=words) as failed, clear_errors():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert failed.value.code == ExitCode.STORE_UNUSABLE
