"""What others must prove that they know: settings, or the contents of files that settings name."""

from __future__ import annotations

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.httpsettings import text_or_file


def ha_secret(config: BrokerConfig) -> bytes:
    """What replicas of a group prove to each other: haSecret, the content of haSecretFile, or what the inner
    credentials of access control make; empty for none. Raises ConfigError."""
    secret = text_or_file("haSecret", config.ha_secret, config.ha_secret_file)
    if config.ha_secret_file and not secret:
        raise ConfigError("haSecretFile", config.ha_secret_file, "is empty")
    if not secret and config.controller_mode and config.ha_extension:
        return config.access.replica_secret
    return secret.encode("ascii")
