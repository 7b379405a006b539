"""A broker: stores what producers send and hands it to consumers."""

from tandemmq.cluster.broker.leftopen import check_store, look
from tandemmq.cluster.broker.serving import serve_broker
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.settings.startable import check_startable

__all__ = ["BrokerConfig", "check_startable", "check_store", "look", "serve_broker"]
