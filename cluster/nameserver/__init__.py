"""The name server: which brokers are alive, and which queues of which topics they hold."""

from __future__ import annotations

from tandemmq.cluster.nameserver.config import KEYS, NameServerConfig
from tandemmq.cluster.nameserver.server import serve_nameserver

__all__ = ["KEYS", "NameServerConfig", "serve_nameserver"]
