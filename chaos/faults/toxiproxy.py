"""The real Toxiproxy server as a child process, driven by the toxiproxy-python library.

The library keeps the server's address in a class of its own, has no time-outs and answers a server's error with
KeyError; all of that is dealt with here: every call is made in a thread, one at a time, with this server's address.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

from tandemmq.chaos.faults.fault import Unsupported
from tandemmq.chaos.ports import LOOPBACK, PORTS
from tandemmq.chaos.processes import AsyncProcess, ProcessBroken

MODULE: Final = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
VARIABLE: Final = "TOXIPROXY_SERVER"
CACHED: Final = Path(__file__).resolve().parents[2] / ".cache" / "toxiproxy" / "server"
BUILD_S: Final = 600
ANSWERS_S: Final = 15.0
CALL_S: Final = 10.0
Stream = Literal["upstream", "downstream"]
Answer = TypeVar("Answer")
_library: Final = threading.Lock()  # it has one address for the whole process


def find_server(*, build: bool = True) -> Path:
    """The server's binary: $TOXIPROXY_SERVER, .cache/toxiproxy, PATH, else built by Go. Raises Unsupported."""
    if given := os.environ.get(VARIABLE):
        if not os.access(given, os.X_OK):
            raise Unsupported(f"{VARIABLE}={given} is no program")
        return Path(given)
    if os.access(CACHED, os.X_OK):
        return CACHED
    if found := shutil.which("toxiproxy-server"):
        return Path(found)
    if build and (go := shutil.which("go")):
        CACHED.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [go, "install", MODULE], env={**os.environ, "GOBIN": str(CACHED.parent)},
            check=False, capture_output=True, text=True, timeout=BUILD_S,
        )  # fmt: skip
        if done.returncode == 0 and CACHED.exists():
            return CACHED
        raise Unsupported(f"go install {MODULE} failed: {done.stderr[-500:]}")
    raise Unsupported(
        f"needs a Toxiproxy server: install Go and it is built, or name a binary by {VARIABLE} "
        f"(go install {MODULE})"
    )


class Toxiproxy:
    """The server inside the block, with no proxies at first."""

    def __init__(self, directory: Path) -> None:
        try:
            import toxiproxy  # noqa: F401  of the extra `chaos`: whoever needs no proxy does without
        except ImportError as problem:
            raise Unsupported(
                f"needs toxiproxy-python: pip install 'tandemmq[chaos]' ({problem})"
            ) from None
        self.port = PORTS.take((0,))
        binary = str(find_server())
        command = [binary, "-host", LOOPBACK, "-port", str(self.port)]
        self.process = AsyncProcess("toxiproxy", command, directory / "toxiproxy.log")

    async def __aenter__(self) -> Self:
        self.process.launch()
        async with asyncio.timeout(ANSWERS_S):
            while not await self._call(lambda server: server.running()):
                if not self.process.alive:
                    raise self.process.broken(f"ended by itself ({self.process.code})")
                await asyncio.sleep(0.02)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.process.abandon()

    async def create(self, name: str, listen: str, upstream: str) -> None:
        """A proxy that listens on `listen` and forwards to `upstream`. Raises ProcessBroken."""
        await self._call(lambda server: server.create(upstream=upstream, name=name, listen=listen))

    async def enable(self, name: str, enabled: bool) -> None:
        """Off: every connection is broken and none is taken."""

        def switch(server: Any) -> None:
            proxy = server.get_proxy(name)
            proxy.enable() if enabled else proxy.disable()

        await self._call(switch)

    async def add(
        self,
        name: str,
        toxic: str,
        stream: Stream,
        attributes: Mapping[str, int],
        toxicity: float = 1.0,
    ) -> str:
        """Put a toxic on a proxy, connections that exist included; its name."""
        called = f"{toxic}_{stream}"

        def put(server: Any) -> None:
            server.get_proxy(name).add_toxic(
                type=toxic,
                stream=stream,
                name=called,
                toxicity=toxicity,
                attributes=dict(attributes),
            )

        await self._call(put)
        return called

    async def remove(self, name: str, toxic: str) -> None:
        """Take a toxic away again."""
        await self._call(lambda server: server.get_proxy(name).destroy_toxic(toxic))

    async def toxics(self, name: str) -> list[str]:
        """What the server says is on this proxy."""
        return sorted(await self._call(lambda server: list(server.get_proxy(name).toxics())))

    async def enabled(self, name: str) -> bool:
        return bool(await self._call(lambda server: server.get_proxy(name).enabled))

    async def _call(self, ask: Callable[[Any], Answer]) -> Answer:
        def asked() -> Answer:
            import toxiproxy

            with _library:
                server = toxiproxy.Toxiproxy()
                server.update_api_consumer(LOOPBACK, self.port)
                return ask(server)

        try:
            async with asyncio.timeout(CALL_S):
                return await asyncio.to_thread(asked)
        except (KeyError, AttributeError) as problem:  # how the library says "the server refused"
            raise ProcessBroken(
                f"Toxiproxy refused: {problem!r}\n{self.process.tail(800)}"
            ) from None
        except TimeoutError:
            raise self.process.broken(f"gave no answer in {CALL_S:g} s") from None
