"""What one process encrypts with, as a server and towards its peers; read again when its files change."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from tandemmq.cluster.process import Job
from tandemmq.cluster.remoting.tls import TlsMode, TlsUnusable, client_context, server_context
from tandemmq.cluster.tlssettings import TlsConfig

log = logging.getLogger(__name__)

LOOK_S: Final = 5.0  # between two looks at the files' dates

Dates = dict[str, tuple[int, int, int]]


class Encryption:
    """One process's TLS contexts.

    Ask for one each time that a connection begins: after a change of files it is another. What is open stays as it
    began. run() serves until cancelled; jobs() has it where there are files to look at.
    """

    def __init__(self, config: TlsConfig) -> None:
        self.config = config
        self._server: ssl.SSLContext | None = None
        self._peers: ssl.SSLContext | None = None
        self._anybody: ssl.SSLContext | None = None
        self._loaded = self._serves = False
        self._reloads: list[Callable[[], Awaitable[None]]] = []
        self._dates: Dates = {}

    def load(self) -> None:
        """Read every file. It blocks: run it in a thread. Raises TlsUnusable, and what was there stays."""
        config = self.config
        dates = self._looked_at()
        server = peers = anybody = None
        serves = (
            self._serves or config.certificate_path
        )  # a file that is wrong is wrong at the start
        if serves and config.mode is not TlsMode.DISABLED:
            server = server_context(config.own_files, test_mode=config.test_mode)
        if config.speaks:
            peers, anybody = self._to(verify=config.checks_peers), self._to(verify=False)
        self._server, self._peers, self._anybody = server, peers, anybody
        self._loaded, self._dates = True, dates

    def _to(self, *, verify: bool) -> ssl.SSLContext:
        config, shown = self.config, self.config.shown_files
        return client_context(
            ca_path=config.roots if verify else "",
            cert_path=shown.cert_path,
            key_path=shown.key_path,
            key_password=shown.key_password,
            verify=verify,
        )

    def server(self) -> ssl.SSLContext | None:
        """What a port of ours encrypts with; None where it takes no TLS. Raises TlsUnusable.

        It blocks the first time. RemotingServers have one of their own.
        """
        if not self._serves:
            self._serves, self._loaded = True, False
        self._have()
        return self._server

    def to_peers(self) -> ssl.SSLContext | None:
        """What we encrypt with towards servers of the cluster; None for plain text. Raises TlsUnusable."""
        self._have()
        return self._peers

    def to_anybody(self) -> ssl.SSLContext | None:
        """The same without a look at the peer's certificate. Raises TlsUnusable."""
        self._have()
        return self._anybody

    def _have(self) -> None:
        if not self._loaded:
            self.load()

    def also(self, reload: Callable[[], Awaitable[None]]) -> None:
        """Have somebody else's context made again when files have changed."""
        self._reloads.append(reload)

    @property
    def _paths(self) -> list[str]:
        config = self.config
        named = (
            config.key_path, config.certificate_path, config.trust_path,
            config.peers_key_path, config.peers_certificate_path, config.peers_trust_path,
        )  # fmt: skip
        return list(filter(None, named))

    def _looked_at(self) -> Dates:
        found: Dates = {}
        for path in self._paths:
            try:
                stat = os.stat(path)
            except OSError:
                continue  # whoever replaces it is not done; loading says what is missing
            found[path] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return found

    def jobs(self) -> dict[str, Job]:
        """Looking at the files, where there are any."""
        return {"certificates": self.run} if self._paths else {}

    async def run(self) -> None:
        """Read the files again whenever one has changed; connections from then on use what is in them."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Compare the files with those that are in use."""
        dates = await asyncio.to_thread(self._looked_at)
        if dates == self._dates:
            return
        try:
            await asyncio.to_thread(self.load)
            for reload in list(self._reloads):
                await reload()
        except TlsUnusable as problem:
            # A key may be here before its certificate: the next change is looked at again.
            self._dates = dates
            log.warning("changed TLS files cannot be used, the former stay in use why=%s", problem)
            return
        log.info("TLS files read again files=%s", ",".join(sorted(dates)))
