"""What others must prove that they know: settings, or the contents of files that settings name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.config import ConfigError

HTTP_TOKEN_CHARACTERS_MIN: Final = 16


def http_token(config: BrokerConfig) -> str:
    """What readers of the HTTP port must show: httpToken, or the content of httpTokenFile.

    Raises ConfigError; the port is not served without one.
    """
    token = _or_from_file("httpToken", config.http_token, config.http_token_file)
    if len(token) < HTTP_TOKEN_CHARACTERS_MIN:
        raise ConfigError(
            "httpTokenFile" if config.http_token_file else "httpToken",
            config.http_token_file,
            f"httpPort={config.http_port} needs a token of at least {HTTP_TOKEN_CHARACTERS_MIN} "
            "printable characters: set httpToken or httpTokenFile",
        )
    return token


def ha_secret(config: BrokerConfig) -> bytes:
    """What replicas of a group prove to each other: haSecret, the content of haSecretFile, or what the inner
    credentials of access control make; empty for none. Raises ConfigError."""
    secret = _or_from_file("haSecret", config.ha_secret, config.ha_secret_file)
    if config.ha_secret_file and not secret:
        raise ConfigError("haSecretFile", config.ha_secret_file, "is empty")
    if not secret and config.controller_mode and config.ha_extension:
        return config.access.replica_secret
    return secret.encode("ascii")


def _or_from_file(key: str, text: str, path: str) -> str:
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
