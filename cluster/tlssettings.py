"""Settings of encryption that brokers, name servers and controllers share: as a server, and towards their peers.

The keys are RocketMQ's. A process whose own ports demand TLS speaks it to its peers, too, unless tls.enable says
otherwise, so that one word in each file keeps plain text off the wire of a whole cluster.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.cluster.config import (
    ConfigError,
    Properties,
    key_of,
    keys_of,
    parse_settings,
    read_properties,
)
from tandemmq.cluster.remoting.tls import ClientAuth, TlsFiles, TlsMode
from tandemmq.storage.settings import setting

log = logging.getLogger(__name__)

USUAL_FILE: Final = "/etc/rocketmq/tls.properties"
SECRETS: Final = frozenset({"tls.server.keyPassword", "tls.client.keyPassword"})

#: what RocketMQ reads besides; a certificate that a client shows is always checked here
AUTH_CLIENT: Final = "tls.server.authClient"

_MODE_ALIASES: Final = {"off": "disabled", "required": "enforcing"}


class Said(enum.Enum):
    """A switch that decides by the other settings where nobody set it."""

    UNSAID = ""
    YES = "true"
    NO = "false"


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one process encrypts with.

    mode            what our ports take
    client_auth     whether they ask clients for a certificate, which trust_path must have signed
    test_mode       without a certificate of ours make one that nobody can verify
    to_peers        whether we speak TLS to name servers, controllers and brokers; unsaid: where our ports demand it
    peers_checked   whether a peer's certificate and name must be right; unsaid: where we know whom to trust
    peers_*         else what our ports have: trusted roots, and the certificate to show to peers that ask for one
    config_file     holds settings of this struct, too; they win, as at RocketMQ
    """

    mode: TlsMode = setting("tls.server.mode", TlsMode.DISABLED)
    key_path: str = setting("tls.server.keyPath", "")
    key_password: str = setting("tls.server.keyPassword", "")
    certificate_path: str = setting("tls.server.certPath", "")
    trust_path: str = setting("tls.server.trustCertPath", "")
    client_auth: ClientAuth = setting("tls.server.need.client.auth", ClientAuth.NONE)
    test_mode: bool = setting("tls.test.mode.enable", True)
    to_peers: Said = setting("tls.enable", Said.UNSAID)
    peers_trust_path: str = setting("tls.client.trustCertPath", "")
    peers_checked: Said = setting("tls.client.authServer", Said.UNSAID)
    peers_certificate_path: str = setting("tls.client.certPath", "")
    peers_key_path: str = setting("tls.client.keyPath", "")
    peers_key_password: str = setting("tls.client.keyPassword", "")
    config_file: str = setting("tls.config.file", "")

    @property
    def enforced(self) -> bool:
        """Whether nobody gets in without TLS."""
        return self.mode is TlsMode.ENFORCING

    @property
    def speaks(self) -> bool:
        """Whether we speak TLS to our peers."""
        return self.to_peers is Said.YES or (self.to_peers is Said.UNSAID and self.enforced)

    @property
    def checks_peers(self) -> bool:
        """Whether a peer's certificate must be signed by a root that we trust, and be for its address."""
        return self.peers_checked is Said.YES or (
            self.peers_checked is Said.UNSAID and bool(self.roots)
        )

    @property
    def roots(self) -> str:
        """Who signs our peers' certificates: a PEM file; "" for nobody but who this machine trusts."""
        return self.peers_trust_path or self.trust_path

    @property
    def own_files(self) -> TlsFiles:
        """What our ports encrypt with."""
        return TlsFiles(
            key_path=self.key_path,
            cert_path=self.certificate_path,
            key_password=self.key_password,
            trust_cert_path=self.trust_path,
            client_auth=self.client_auth,
        )

    @property
    def shown_files(self) -> TlsFiles:
        """What we show to peers that ask for a certificate: tls.client.*, else what our ports have."""
        if not self.peers_certificate_path:
            return self.own_files
        return TlsFiles(
            key_path=self.peers_key_path,
            cert_path=self.peers_certificate_path,
            key_password=self.peers_key_password,
        )

    def check(self) -> None:
        """Refuse half of a certificate, and to ask for ones that nobody could judge. Raises ConfigError."""
        for certificate, key in (
            ("certificate_path", "key_path"),
            ("peers_certificate_path", "peers_key_path"),
        ):
            has, lacks = certificate, key
            if not getattr(self, has):
                has, lacks = key, certificate
            if getattr(self, has) and not getattr(self, lacks):
                raise ConfigError(
                    key_of(TlsConfig, has),
                    getattr(self, has),
                    f"needs {key_of(TlsConfig, lacks)} too: a certificate and its key are two files",
                )
        if self.enforced and not self.certificate_path and not self.test_mode:
            raise ConfigError(
                "tls.server.mode",
                "enforcing",
                "needs tls.server.certPath and tls.server.keyPath, for tls.test.mode.enable=false makes none",
            )
        asks = self.mode is not TlsMode.DISABLED and self.client_auth is not ClientAuth.NONE
        if asks and not self.trust_path:
            raise ConfigError(
                "tls.server.need.client.auth",
                self.client_auth.value,
                "needs tls.server.trustCertPath: the certificates of those who may sign clients' certificates",
            )

    def warnings(self) -> list[str]:
        """What an operator should know at the start."""
        if self.speaks and not self.checks_peers:
            return [
                "whoever stands between us and our peers may read and change everything, for their certificates are "
                "not checked: set tls.client.trustCertPath"
            ]
        return []


def read_tls(given: Mapping[str, str]) -> TlsConfig:
    """The settings of encryption among those of a process, and of the file that they name. Raises ConfigError.

    Without tls.config.file RocketMQ's usual one is read if it is there and anything of TLS is asked for.
    """
    own = {key: text for key, text in given.items() if key in KEYS}
    path = own.get("tls.config.file", "").strip()
    if path or (own and Path(USUAL_FILE).exists()):
        path = path or USUAL_FILE
        found = read_properties(Path(path))
        log.info("TLS settings read file=%s keys=%s", path, ",".join(sorted(found.keys() & KEYS)))
        own.update(found)
    settings: Properties = dict(own)
    for key in ("tls.server.mode", "tls.enable", "tls.client.authServer"):
        if key in settings:
            text = settings[key].strip().lower()
            settings[key] = _MODE_ALIASES.get(text, text)
    auth = settings.get("tls.server.need.client.auth", "").strip().lower()
    settings["tls.server.need.client.auth"] = auth or ClientAuth.NONE.value
    return parse_settings(TlsConfig, settings, also_known=KEYS)


KEYS: Final = frozenset({*keys_of(TlsConfig), AUTH_CLIENT})
"""Every key that read_tls() reads."""
