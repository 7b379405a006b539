"""One of our brokers as a process that can be killed and started again on its store."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tandemmq.chaos.ports import CAMPAIGN_PORTS, LOOPBACK

READY_S: Final = 60
STOP_S: Final = 10
POLL_S: Final = 0.01


class BrokerFailed(Exception):
    """The broker did not start, ended by itself or did not stop; carries the end of its log."""


class BrokerProcess:
    """A broker process; its directory holds settings, log and store."""

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        self.port = CAMPAIGN_PORTS.take()
        self.store = directory / "store"
        self.log = directory / "broker.log"
        merged: dict[str, object] = {
            "brokerName": "broker-kills",
            "brokerIP1": LOOPBACK,
            "listenPort": self.port,
            "haListenPort": self.port + 1,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            **settings,
        }
        config = directory / "broker.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in merged.items()))
        self._command = [sys.executable, "-X", "faulthandler", "-m", "tandemmq", "broker"]
        self._command += ["-c", str(config)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process, without waiting until it is ready."""
        packages = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")]))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )

    async def ready(self) -> float:
        """Wait until the port accepts; seconds it took. Raises BrokerFailed."""
        began = time.monotonic()
        while True:
            try:
                _, writer = await asyncio.open_connection(LOOPBACK, self.port)
            except OSError:
                pass
            else:
                writer.close()
                await writer.wait_closed()
                return time.monotonic() - began
            if not self.alive:
                raise BrokerFailed(f"ended by itself while starting\n{self.tail()}")
            if time.monotonic() - began > READY_S:
                raise BrokerFailed(f"not ready in {READY_S} s\n{self.tail()}")
            await asyncio.sleep(POLL_S)

    def kill(self) -> None:
        """kill -9. Raises BrokerFailed if the process had ended before by itself."""
        assert self._process is not None, "kill before launch"
        if not self.alive:
            raise BrokerFailed(f"ended by itself ({self._process.returncode})\n{self.tail()}")
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM; raises BrokerFailed unless the process ends well and in time."""
        assert self._process is not None, "stop before launch"
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise BrokerFailed(f"not stopped {STOP_S} s after SIGTERM\n{self.tail()}") from None
        if code:
            raise BrokerFailed(f"ended with {code} after SIGTERM\n{self.tail()}")

    def abandon(self) -> None:
        """End the process in whatever state it is."""
        if self._process is not None and self.alive:
            self._process.kill()
            self._process.wait()

    def tail(self, characters: int = 4000) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""
