"""Settings of access control that brokers, name servers and controllers share: who may always come in, and how we sign.

Both are Super users. Their passwords stand in the settings or, better, in a file that a setting names; nothing hands
them out again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.cluster.access.signature import AccessUser, sign_own
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.remoting.command import Command
from tandemmq.storage.settings import ours, setting

INIT_USER: Final = "initAuthenticationUser"
INNER: Final = "innerClientAuthenticationCredentials"
SECRETS: Final = frozenset({INIT_USER, INNER})
#: what RocketMQ's own example files say: everybody knows it
_KNOWN_PASSWORDS: Final = frozenset({"12345678"})

Sign = Callable[[Command], None]


class AccessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Whether requests must be signed, and by whom they may always be.

    init_user   {"username":"...","password":"..."}: a Super user, made when there is none of the name
    inner       {"accessKey":"...","secretKey":"..."}: what this process signs its own requests with; a Super user too
    """

    authentication: bool = setting("authenticationEnabled", False)
    init_user: str = setting(INIT_USER, "")
    init_user_file: str = ours("initAuthenticationUserFile", "")
    inner: str = setting(INNER, "")
    inner_file: str = ours("innerClientAuthenticationCredentialsFile", "")

    @property
    def key_and_secret(self) -> tuple[str, str, str] | None:
        """Access key, secret key and token of what this process sends; None: it goes unsigned. Raises ConfigError."""
        found = _json_of(INNER, self.inner, self.inner_file)
        key, secret = found.get("accessKey", ""), found.get("secretKey", "")
        if bool(key) != bool(secret) or (found and not key):
            raise ConfigError(INNER, "******", 'must be {"accessKey":"...","secretKey":"..."}')
        return (key, secret, found.get("securityToken", "")) if key else None

    @property
    def signer(self) -> Sign | None:
        """Signs what this process sends; None: it goes unsigned. Raises ConfigError."""
        keys = self.key_and_secret
        if keys is None:
            return None
        key, secret, token = keys
        return partial(sign_own, access_key=key, secret_key=secret, security_token=token)

    @property
    def users(self) -> list[AccessUser]:
        """Super users that are made where their names are unknown. Raises ConfigError."""
        made = []
        found = _json_of(INIT_USER, self.init_user, self.init_user_file)
        if found:
            name, password = found.get("username", ""), found.get("password", "")
            if not name.strip() or not password.strip():
                raise ConfigError(
                    INIT_USER, "******", 'must be {"username":"...","password":"..."}'
                )
            made.append(AccessUser(name, password, is_super=True))
        if keys := self.key_and_secret:
            made.append(AccessUser(keys[0], keys[1], is_super=True))
        return made

    @property
    def replica_secret(self) -> bytes:
        """What replicas of a group prove to each other where no haSecret says otherwise; empty for none."""
        keys = self.key_and_secret if self.authentication else None
        if keys is None:
            return b""
        return hmac.new(keys[1].encode(), b"replication", hashlib.sha256).hexdigest().encode()

    def check(self) -> None:
        """Refuse to ask for signatures where nobody's is known. Raises ConfigError."""
        if self.authentication and not self.users:
            raise ConfigError(
                "authenticationEnabled", "true", f"needs a Super user: give {INIT_USER} or {INNER}"
            )

    def warnings(self) -> list[str]:
        """What an operator should know at the start. Raises ConfigError."""
        return [
            f"the password of {user.name} is that of RocketMQ's example files, everybody knows it"
            for user in self.users
            if user.password in _KNOWN_PASSWORDS
        ]


def _json_of(key: str, text: str, path: str) -> dict[str, str]:
    """The texts of a setting in JSON, or of the file that another one names. Raises ConfigError, without secrets."""
    where = f"{key}File" if path else key
    if text and path:
        raise ConfigError(where, path, f"give this or {key}, not both")
    if path:
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "must be text in UTF-8"
            raise ConfigError(where, path, why) from error
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ConfigError(where, path or "******", "must be a JSON object of texts")
    return found
