"""tandemmq/command/serving.py: what an operator reads when a server cannot start."""

from __future__ import annotations

import errno
import os

import pytest

from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.serving import clear_errors


def test_a_start_on_a_full_disk_says_where_to_make_room() -> None:
    words = "No space left on device: make room where"
    with pytest.raises(CommandFailed, match=words) as failed, clear_errors():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert failed.value.code == ExitCode.STORE_UNUSABLE


@pytest.mark.parametrize("why", [errno.EACCES, errno.EROFS])
def test_a_directory_of_another_user_is_no_port_that_is_taken(why: int) -> None:
    with (
        pytest.raises(CommandFailed, match=r"'/data/store': it must be writable") as failed,
        clear_errors(),
    ):
        raise OSError(why, os.strerror(why), "/data/store")
    assert failed.value.code == ExitCode.STORE_UNUSABLE


def test_a_port_that_only_root_may_have_is_one_that_is_taken() -> None:
    with pytest.raises(CommandFailed) as failed, clear_errors():
        raise PermissionError(errno.EACCES, "error while attempting to bind on address")
    assert failed.value.code == ExitCode.PORT_TAKEN
