"""What both servers of a memory cluster are: an address, and a handler for each request that they know."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tandemmq.cluster.remoting import Command, HeaderProblem, ResponseCode
from tandemmq.testing.memory.log import Log
from tandemmq.testing.memory.members import Members
from tandemmq.testing.memory.wires import Arrivals, Handle, MemoryWire

CLUSTER = "MemoryCluster"
BROKER = "memory-broker"


@dataclass(slots=True)
class State:
    """What the servers of one cluster share. Everything is guarded by `lock`: clients may be in several threads.

    now_ms  the cluster's wall time
    """

    log: Log
    now_ms: Callable[[], int]
    members: Members = field(default_factory=Members)
    arrivals: Arrivals = field(default_factory=Arrivals)
    lock: threading.RLock = field(default_factory=threading.RLock)


class Server:
    """One address. down: it answers nobody, as a server that is away."""

    def __init__(self, address: str, state: State, table: Mapping[int, Handle]) -> None:
        self.address = address
        self.down = False
        self._state = state
        self._table = table

    async def answer(self, command: Command, wire: MemoryWire) -> Command:
        """The answer to a request; RocketMQ's refusal for one that is not known."""
        handle = self._table.get(command.code)
        if handle is None:
            return command.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported: a memory cluster does not have it, "
                "take a real one for this test",
            )
        try:
            with self._state.lock:
                answer = handle(command, wire)
        except HeaderProblem as problem:
            return command.reply(ResponseCode.SYSTEM_ERROR, str(problem))
        return answer if isinstance(answer, Command) else await answer

    def left(self, wire: MemoryWire) -> None:
        """A client hung up."""
        with self._state.lock:
            self._state.members.forget(wire)
