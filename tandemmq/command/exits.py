"""How the `tandem` command ends: one number per kind of failure, the same for every subcommand."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of `tandem`. Scripts may rely on them; numbers are never reused."""

    OK = 0
    FAILED = 1  # the request was refused or failed; the text says why
    USAGE = 2  # unknown command or option, as argparse uses it
    BAD_CONFIG = 3  # a setting or a settings file cannot be used
    UNREACHABLE = 4  # no name server answers, or the topic has no broker
    UNSOUND = 5  # the store was read and something in it is damaged
    NOT_RUNNING = 6  # a process is not running, not registered, or a replica without a role
    NOT_STOPPED = 7  # a process still runs after it was asked to stop
    PORT_TAKEN = 8  # another process listens there, or the address is not ours
    STORE_UNUSABLE = 9  # of another broker or user, unreadable, full, or RocketMQ left work open
    DISK_FAILED = 10  # fdatasync failed: what the disk holds is unknown, see docs/operations.md
    MISSING = 11  # something that must be installed or given is not there
    NOT_FOUND = 12  # the message, group or setting that was asked for does not exist
    LOOKS_WRONG = 13  # tandem doctor: something is not as it should be
    AT_RISK = 14  # tandem doctor: somebody waits now, or acknowledged messages are at risk
    BUG = 70  # a failed assertion: the log holds the story
    OPTIMIZED = 71  # started with python -O
    INTERRUPTED = 130  # Ctrl-C


class CommandFailed(Exception):
    """An expected failure: its text goes to stderr without a traceback, its code to the shell."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code
