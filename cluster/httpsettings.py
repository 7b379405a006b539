"""Settings of the HTTP port that brokers, name servers and controllers share."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tandemmq.cluster.addresses import LOOPBACK
from tandemmq.cluster.config import ConfigError, is_loopback
from tandemmq.storage.settings import ours

TOKEN_CHARACTERS_MIN: Final = 16
SECRETS: Final = frozenset({"httpToken"})


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process serves HTTP, and to whom.

    port          0: not at all
    host          where to listen; "" is loopback
    token         who shows it may read and change everything; or token_file, which holds it
    server_names  by which clients may call this port besides its addresses; commas or blanks between
    metrics_open  /metrics is for whoever reaches the port; else for this machine, and for who shows the token
    name_servers  whom the admin API asks, host:port;host:port; "": those of the process. A controller has none
    """

    port: Annotated[int, Meta(ge=0, le=65535)] = ours("httpPort", 0)
    host: str = ours("httpHost", "")
    token: str = ours("httpToken", "")
    token_file: str = ours("httpTokenFile", "")
    server_names: str = ours("httpServerNames", "")
    metrics_open: bool = ours("httpMetricsOpen", False)
    name_servers: str = ours("httpNamesrvAddr", "")

    @property
    def bind_host(self) -> str:
        return self.host or LOOPBACK

    @property
    def names(self) -> frozenset[str]:
        """What a Host header may say besides an address, in lower case."""
        named = filter(None, re.split(r"[,;\s]+", self.server_names))
        own = {"localhost", self.host, socket.gethostname(), *named}
        return frozenset(name.lower() for name in own if name)

    def read_token(self) -> str:
        """What clients of the port must show: httpToken, or the content of httpTokenFile.

        Raises ConfigError; the port is not served without one.
        """
        token = text_or_file("httpToken", self.token, self.token_file)
        if len(token) < TOKEN_CHARACTERS_MIN:
            raise ConfigError(
                "httpTokenFile" if self.token_file else "httpToken",
                self.token_file,
                f"httpPort={self.port} needs a token of at least {TOKEN_CHARACTERS_MIN} "
                "printable characters: set httpToken or httpTokenFile",
            )
        return token

    def check(self, *, encrypted: bool, insecure: bool) -> None:
        """Refuse a port without a token, and one that shows it to the network.

        encrypted   the process takes TLS only
        insecure    --insecure was given
        Raises ConfigError.
        """
        if not self.port:
            return
        self.read_token()
        if not (is_loopback(self.bind_host) or encrypted or insecure):
            raise ConfigError(
                "httpHost",
                self.host,
                "must be loopback, or the token and all that is asked for cross the network in plain text: set "
                "tls.server.mode=enforcing, or start with --insecure if the network keeps others away",
            )


def text_or_file(key: str, text: str, path: str) -> str:
    """A secret that is a setting `key`, or in a file that `key`File names. Raises ConfigError."""
    if text and path:
        raise ConfigError(f"{key}File", path, f"give this or {key}, not both")
    if path:
        try:
            text = Path(path).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "must hold printable characters of ASCII"
            raise ConfigError(f"{key}File", path, why) from error
    if not text.isascii() or (text and not text.isprintable()):
        raise ConfigError(
            f"{key}File" if path else key, path, "must hold printable characters of ASCII"
        )
    return text
