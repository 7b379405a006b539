"""The protocol of brokers, name servers, clients and tools: frames, commands, connections."""

from __future__ import annotations

from tandemmq.cluster.remoting.channel import Channel, ChannelPool, open_channel, split_address
from tandemmq.cluster.remoting.codes import VERSION, LanguageCode, RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import ChunkHandler, Connection, Endpoint, Handler
from tandemmq.cluster.remoting.errors import (
    ConnectFailed,
    ConnectionLost,
    HeaderProblem,
    PeerBrokeProtocol,
    RemotingError,
    RequestTimedOut,
)
from tandemmq.cluster.remoting.frame import FrameLimits
from tandemmq.cluster.remoting.server import Listen, RemotingServer
from tandemmq.cluster.remoting.stream import ConnectionLimits, RemotingStats
from tandemmq.cluster.remoting.tls import TlsFiles, TlsMode, client_context

__all__ = [
    "VERSION",
    "Channel",
    "ChannelPool",
    "ChunkHandler",
    "Command",
    "ConnectFailed",
    "Connection",
    "ConnectionLimits",
    "ConnectionLost",
    "Endpoint",
    "FrameLimits",
    "Handler",
    "HeaderProblem",
    "LanguageCode",
    "Listen",
    "PeerBrokeProtocol",
    "RemotingError",
    "RemotingServer",
    "RemotingStats",
    "RequestCode",
    "RequestTimedOut",
    "ResponseCode",
    "TlsFiles",
    "TlsMode",
    "client_context",
    "open_channel",
    "split_address",
]
