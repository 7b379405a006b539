"""QUERY_MESSAGE (12) and VIEW_MESSAGE_BY_ID (33): messages by key, one by its place."""

from __future__ import annotations

from tandemmq.cluster.broker.errors import NoMessageThere
from tandemmq.cluster.broker.replies import REFUSALS, refusal
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Connection, Handler
from tandemmq.cluster.remoting.headers import QueryMessageHeader, ViewMessageHeader
from tandemmq.storage import MessageStore


class QueryHandler:
    """Finds stored messages for tools and for clients' queryMessage and viewMessage."""

    def __init__(self, config: BrokerConfig, store: MessageStore) -> None:
        self._config = config
        self._store = store

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_MESSAGE: self.handle_query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: self.handle_view_message_by_id,
        }

    def handle_query_message(self, request: Command, connection: Connection) -> Command:
        """Messages of a topic that carry a key; it may be a message's unique id."""
        try:
            header = QueryMessageHeader.of(request)
            unique = (request.ext or {}).get("_UNIQUE_KEY_QUERY") == "true"
            count_max = self._config.storage.query_count_default if unique else header.max_num
            found = self._store.query(
                header.topic,
                header.key,
                count_max,
                header.begin_timestamp,
                header.end_timestamp,
                unique=unique,
            )
        except REFUSALS as error:
            return refusal(request, error)
        if not found.records:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                {"indexLastUpdatePhyoffset": "0", "indexLastUpdateTimestamp": "0"},
            )
        ext = {
            "indexLastUpdatePhyoffset": str(found.last_offset),
            "indexLastUpdateTimestamp": str(found.last_ms),
        }
        return request.reply(ext=ext, body=b"".join(found.records))

    def handle_view_message_by_id(self, request: Command, connection: Connection) -> Command:
        """The record that starts at a log offset, as it lies there."""
        try:
            header = ViewMessageHeader.of(request)
            record = self._store.record_at(header.offset)
            if record is None:
                raise NoMessageThere(f"can not find message by the offset, {header.offset}")
            return request.reply(body=bytes(record))
        except REFUSALS as error:
            return refusal(request, error)
