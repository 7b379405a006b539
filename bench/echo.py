"""The echo server: a fixed-size answer to every request frame, as fast as uvloop and C allow.

`python -m bench.echo --port 0 [--opaque-offset N]` prints `ready port=PORT`. It is the upper limit
that a broker on the same event loop could reach: the same frames in, answers of the same size out,
nothing stored.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import cast

import uvloop

from bench.build import echo_split

BUFFER_BYTES = 1 << 20

#: (buffer, start, end, opaque_offset) -> (consumed bytes, answers)
Answer = Callable[[bytearray, int, int, int], tuple[int, bytes]]


class Echo(asyncio.BufferedProtocol):
    """One connection. All share one receive buffer; an incomplete frame waits outside it."""

    def __init__(self, shared: bytearray, answer: Answer, opaque_offset: int) -> None:
        self._shared = shared
        self._view = memoryview(shared)
        self._answer = answer
        self._opaque_offset = opaque_offset
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        rest = self._rest
        if rest:
            self._shared[: len(rest)] = rest
            return self._view[len(rest) :]
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        end = len(self._rest) + nbytes
        try:
            consumed, answers = self._answer(self._shared, 0, end, self._opaque_offset)
        except ValueError:
            self._transport.abort()
            return
        if consumed == 0 and end == BUFFER_BYTES:
            self._transport.abort()  # a frame larger than any that bench sends
            return
        self._rest = b"" if consumed == end else bytes(self._view[consumed:end])
        if answers:
            self._transport.write(answers)


async def serve(port: int, opaque_offset: int) -> None:
    """Serve on loopback until the process is ended."""
    answer = cast(Answer, echo_split().answer)
    shared = bytearray(BUFFER_BYTES)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Echo(shared, answer, opaque_offset), "127.0.0.1", port
    )
    print(f"ready port={server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m bench.echo", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--opaque-offset", type=int, default=0, help="answer a wrong opaque: a test's liar"
    )
    given = parser.parse_args()
    uvloop.run(serve(given.port, given.opaque_offset))


if __name__ == "__main__":
    main()
