"""Administration of settings.

Reading them all, and changing the few that may change while running.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tandemmq.cluster.broker.handlers.requests import Refused, dumps, refusing
from tandemmq.cluster.broker.reading.members import Peer
from tandemmq.cluster.broker.settings.changing import change_settings
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.settings.shown import shown_settings
from tandemmq.cluster.broker.tables.versions import DataVersion
from tandemmq.cluster.config import (
    ConfigError,
    edit_properties_file,
    format_properties,
    parse_properties,
)
from tandemmq.cluster.logs import once_per
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.storage import Clock

log = logging.getLogger(__name__)
_refused = once_per(10)

BODY_BYTES_MAX = 256 << 10
REMARK_MAX = 512


class ConfigAdminHandlers:
    """Source: RocketMQ's AdminBrokerProcessor. It lists what may not be changed, we list what may."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, on_permission: Callable[[], None]
    ) -> None:
        self._config = config
        self._clock = clock
        self._on_permission = on_permission
        self._version = DataVersion(timestamp=clock.now_ms())

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_CONFIG: refusing(self.handle_get_broker_config),
            RequestCode.UPDATE_BROKER_CONFIG: refusing(self.handle_update_broker_config),
        }

    def handle_get_broker_config(self, command: Command, connection: Peer) -> Command:
        text = format_properties(shown_settings(self._config))
        version = dumps(self._version.to_json()).decode()
        return command.reply(ext={"version": version}, body=text.encode("utf-8"))

    async def handle_update_broker_config(self, command: Command, connection: Peer) -> Command:
        body = bytes(command.body or b"")
        if len(body) > BODY_BYTES_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"body above {BODY_BYTES_MAX} bytes")
        try:
            wanted = parse_properties(body.decode("utf-8"))
        except (ConfigError, UnicodeDecodeError) as problem:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"string2Properties error: {problem}"
            ) from None
        try:
            changed = change_settings(self._config, wanted)
        except ConfigError as problem:
            _refused.warning(
                log, "settings change refused peer=%s:%d why=%s", *connection.peer, problem
            )
            raise Refused(ResponseCode.NO_PERMISSION, str(problem)[:REMARK_MAX]) from None
        if not changed:
            return command.reply()
        self._version.advance(self._clock.now_ms())
        log.info("settings changed peer=%s settings=%s", connection.peer, changed)
        if "brokerPermission" in changed:
            self._on_permission()
        if self._config.file:
            await self._keep(changed)
        return command.reply()

    async def _keep(self, changed: dict[str, str]) -> None:
        """In the file, for the next start. Raises Refused: a container's is often mounted read-only."""
        file = self._config.file
        try:
            await asyncio.to_thread(edit_properties_file, file, changed)
        except OSError as problem:
            why = problem.strerror or str(problem)
            log.warning("settings not kept file=%s why=%s", file, why)
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"in force now, but not after a restart: {file} cannot be written: {why}",
            ) from None
