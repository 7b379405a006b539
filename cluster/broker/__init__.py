"""A broker: stores what producers send and hands it to consumers."""

from cluster.broker.broker import serve_broker
from cluster.broker.config import BrokerConfig, check_startable

__all__ = ["BrokerConfig", "check_startable", "serve_broker"]
