"""A broker: stores what producers send and hands it to consumers."""

from cluster.broker.config import BrokerConfig
from cluster.broker.leftopen import check_store, look
from cluster.broker.serving import serve_broker
from cluster.broker.startable import check_startable

__all__ = ["BrokerConfig", "check_startable", "check_store", "look", "serve_broker"]
