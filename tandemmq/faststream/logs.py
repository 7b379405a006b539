"""How FastStream logs what a broker does: topic and group in front of each line."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

MESSAGE_ID_WIDTH = 32


class TandemLogs(DefaultLoggerStorage):
    """Widths of the columns, as wide as the longest name."""

    def __init__(self) -> None:
        super().__init__()
        self._topic_width = 4
        self._group_width = 0
        self.logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        self._topic_width = max(self._topic_width, len(params.get("topic", "")))
        self._group_width = max(self._group_width, len(params.get("group", "")))

    def get_logger(self, *, context: Any) -> Any:
        if not (logger := self._get_logger_ref()):
            columns = f"%(topic)-{self._topic_width}s | %(group)-{self._group_width}s | "
            logger = get_broker_logger(
                name="tandemmq", default_context={"topic": "", "group": ""},
                message_id_ln=MESSAGE_ID_WIDTH,
                fmt=f"%(asctime)s %(levelname)-8s - {columns}%(message_id)-{MESSAGE_ID_WIDTH}s - %(message)s",
                context=context, log_level=self.logger_log_level,
            )  # fmt: skip
            self._logger_ref.add(logger)
        return logger


make_tandem_logger_state = partial(make_logger_state, default_storage_cls=TandemLogs)
