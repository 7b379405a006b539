"""What a client's errors mean for the shell: one line of text and an exit code."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from tandemmq.cluster.client import BrokerUnreachable, ClientError, NoNameServer, NoRoute
from tandemmq.cluster.client.admin.calls import UnknownCluster
from tandemmq.cluster.client.errors import NAME_SERVER_ADVICE
from tandemmq.command.exits import CommandFailed, ExitCode

_UNREACHABLE = (BrokerUnreachable, NoRoute)


@contextmanager
def client_errors() -> Iterator[None]:
    """Turn ClientError, a bad argument and a file that cannot be read into CommandFailed."""
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read our output has enough: main() ends quietly
    except NoNameServer as problem:
        if problem.advice != NAME_SERVER_ADVICE:
            raise CommandFailed(str(problem), ExitCode.UNREACHABLE) from problem
        raise CommandFailed(
            f"{problem.said}. Name one with -n HOST:PORT or NAMESRV_ADDR, or start a cluster here: "
            "tandem local up",
            ExitCode.UNREACHABLE,
        ) from problem
    except _UNREACHABLE as problem:
        raise CommandFailed(str(problem), ExitCode.UNREACHABLE) from problem
    except UnknownCluster as problem:
        raise CommandFailed(str(problem), ExitCode.NOT_FOUND) from problem
    except (ClientError, ValueError) as problem:
        raise CommandFailed(str(problem)) from problem
    except OSError as problem:
        if problem.errno == errno.ENOSPC and problem.filename is None:
            raise  # our output: main() says so
        raise CommandFailed(str(problem)) from problem
