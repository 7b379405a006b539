"""Accounts of ACL 1.0, requests 50 to 54: for accounts with `admin: true` alone (tandemmq.cluster.access.needs).

Source: RocketMQ 4.9's AdminBrokerProcessor. 54 showed every secret key to whoever asked (CVE-2024-23321): nothing here
does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from tandemmq.cluster.access.signature import ACCESS_KEY
from tandemmq.cluster.broker.handlers.requests import Refused, dumps, refusing
from tandemmq.cluster.broker.reading.members import Peer
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler

if TYPE_CHECKING:
    from tandemmq.cluster.broker.access.plainfiles import PlainFiles

log = logging.getLogger(__name__)

#: the same numbers mean something else in other answers
UPDATE_FAILED: Final = ResponseCode.POLLING_FULL  # 209
DELETE_FAILED: Final = ResponseCode.POLLING_TIMEOUT  # 210
WHITE_FAILED: Final = ResponseCode.BROKER_NOT_EXIST  # 211
_LISTS: Final = ("topicPerms", "groupPerms")
_TEXTS: Final = (
    "accessKey", "secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm",
)  # fmt: skip


class AccountHandlers:
    """Changes of the files of accounts."""

    def __init__(self, config: BrokerConfig, files: PlainFiles) -> None:
        self._config = config
        self._files = files

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: refusing(
                self.handle_update_and_create_acl_config
            ),
            RequestCode.DELETE_ACL_CONFIG: refusing(self.handle_delete_acl_config),
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: refusing(
                self.handle_get_broker_cluster_acl_info
            ),
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: refusing(
                self.handle_update_global_white_addrs_config
            ),
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: refusing(
                self.handle_get_broker_cluster_acl_config
            ),
        }

    async def handle_update_and_create_acl_config(
        self, command: Command, connection: Peer
    ) -> Command:
        ext = command.ext or {}
        given: dict[str, Any] = {key: ext[key] for key in _TEXTS if ext.get(key)}
        for key in _LISTS:
            if ext.get(key):
                given[key] = [part.strip() for part in ext[key].split(",") if part.strip()]
        if "admin" in ext:
            given["admin"] = ext["admin"].strip().lower() == "true"
        try:
            await self._files.put_account(given)
        except (ValueError, OSError) as problem:
            raise Refused(UPDATE_FAILED, str(problem)) from None
        return self._done(command, connection, given.get("accessKey", ""))

    async def handle_delete_acl_config(self, command: Command, connection: Peer) -> Command:
        key = (command.ext or {}).get("accessKey", "")
        try:
            deleted = bool(key) and await self._files.delete_account(key)
        except (ValueError, OSError) as problem:
            raise Refused(DELETE_FAILED, str(problem)) from None
        if not deleted:
            raise Refused(
                DELETE_FAILED,
                f"The accesskey[{key[:64]}] corresponding to accessConfig has been deleted failed.",
            )
        return self._done(command, connection, key)

    async def handle_update_global_white_addrs_config(
        self, command: Command, connection: Peer
    ) -> Command:
        ext = command.ext or {}
        addresses = [part.strip() for part in ext.get("globalWhiteAddrs", "").split(",")]
        try:
            await self._files.put_white(
                [each for each in addresses if each], ext.get("aclFileFullPath", "").strip()
            )
        except (ValueError, OSError) as problem:
            raise Refused(
                WHITE_FAILED,
                f"The globalWhiteAddresses has been updated failed. {problem}",
            ) from None
        return self._done(command, connection, "globalWhiteRemoteAddresses")

    def handle_get_broker_cluster_acl_info(self, command: Command, connection: Peer) -> Command:
        versions = self._files.versions()
        main = versions.get(str(self._files.path), {"counter": 0, "timestamp": 0})
        ext = {
            "version": dumps(main).decode(),
            "allAclFileVersion": dumps(versions).decode(),
            "brokerName": self._config.name,
            "brokerAddr": self._config.address,
            "clusterName": self._config.cluster,
        }
        return command.reply(ext=ext)

    def handle_get_broker_cluster_acl_config(self, command: Command, connection: Peer) -> Command:
        raise Refused(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {command.code} not supported: it would show every secret key",
        )

    def _done(self, command: Command, connection: Peer, what: str) -> Command:
        log.info(
            "accounts changed request=%s by=%r of=%r peer=%s:%d",
            RequestCode(command.code).name,
            (command.ext or {}).get(ACCESS_KEY),
            what,
            *connection.peer,
        )
        return command.reply()
