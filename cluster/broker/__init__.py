"""A broker: stores what producers send and hands it to consumers."""

from cluster.broker.config import BrokerConfig, check_startable
from cluster.broker.serving import serve_broker

__all__ = ["BrokerConfig", "check_startable", "serve_broker"]
