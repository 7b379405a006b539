"""The tables that slaves and tools copy whole: topics, progress, delay progress, groups."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tandemmq.cluster.broker.handlers.requests import Refused, dumps, refusing
from tandemmq.cluster.broker.reading.members import Peer
from tandemmq.cluster.broker.sending.delay import DelaySchedule
from tandemmq.cluster.broker.tables.groups import LOCKS_OF, GroupTable
from tandemmq.cluster.broker.tables.metasync import (
    CHANGES,
    HOLD,
    READER,
    READER_LIFE,
    STAMP,
    UNCHANGED,
)
from tandemmq.cluster.broker.tables.offsets import OffsetTable
from tandemmq.cluster.broker.tables.resting import RESTS_ON, Resting
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.tablereaders import HOLD_MS, TableReaders
from tandemmq.cluster.broker.tables.topics import TopicTable
from tandemmq.cluster.remoting.codes import RequestCode, ResponseCode
from tandemmq.cluster.remoting.command import Command
from tandemmq.cluster.remoting.connection import Handler
from tandemmq.storage import MessageStore


@dataclass(frozen=True, slots=True, eq=False)
class TableHandlers:
    """Answers of one body each; masters and slaves give them alike.

    A table of progress says up to where in the log it rests, and a slave of ours looks at that
    (INV-41). Who does not, waits until those who follow have the log up to there.

    Paging fields are ignored: an answer without a total is taken as complete by every caller. A
    slave of ours names the state of the table that it has, and gets no body when that is still the
    state: it may ask often. One that says who it is gets of topics and groups only what changed, may
    have its question wait for the next change, and tells with it what it has (INV-43).
    Source: RocketMQ's AdminBrokerProcessor.

    users  for slaves of ours, with the groups: with all rules, where slaves prove who they are; None where nobody does
    locks  for them too: of the queues of these groups, or of all
    """

    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    schedule: DelaySchedule
    store: MessageStore
    readers: TableReaders
    resting: Resting
    users: Callable[[], dict[str, Any] | None]
    locks: Callable[[Iterable[str] | None], dict[str, Any]]
    #: generations are counted from each start anew
    _life: str = field(default_factory=lambda: secrets.token_hex(4), init=False)

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: refusing(self.handle_get_all_topic_config),
            RequestCode.GET_ALL_CONSUMER_OFFSET: refusing(self.handle_get_all_consumer_offset),
            RequestCode.GET_ALL_DELAY_OFFSET: refusing(self.handle_get_all_delay_offset),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: refusing(
                self.handle_get_all_subscriptiongroup_config
            ),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: refusing(
                self.handle_get_all_message_request_mode
            ),
        }

    def handle_get_all_topic_config(
        self, command: Command, connection: Peer
    ) -> Command | Awaitable[Command]:
        return self._follow(command, self.topics.file, self._topic_tree)

    def _topic_tree(self, command: Command, names: set[str] | None = None) -> dict[str, Any]:
        if names is not None:
            found = {name: t.to_json() for name in names if (t := self.topics.get(name))}
            tree: dict[str, Any] = {
                "dataVersion": self.topics.version.to_json(),
                "gone": sorted(names - found.keys() - {""}),
                "logStart": self.store.start,
                "topicConfigTable": found,
            }
            return {**tree, **self._deletions()} if "" in names else tree
        ours = STAMP in (command.ext or {})
        return {
            **self.topics.to_json(),
            **(self._deletions() if ours else {}),
            "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }

    async def handle_get_all_consumer_offset(self, command: Command, connection: Peer) -> Command:
        return await self._progress(command, self.offsets.file, self.offsets.shared_json)

    async def handle_get_all_delay_offset(self, command: Command, connection: Peer) -> Command:
        return await self._progress(command, self.schedule.file, self.schedule.to_json)

    def _deletions(self) -> dict[str, Any]:
        """Ours, and for slaves of ours only: see tandemmq.storage.tombstones."""
        store = self.store
        return {"deletedTopics": store.tombstones.all(), "logStart": store.start}

    def handle_get_all_subscriptiongroup_config(
        self, command: Command, connection: Peer
    ) -> Command | Awaitable[Command]:
        return self._follow(command, self.groups.file, self._group_tree)

    def _group_tree(self, command: Command, names: set[str] | None = None) -> dict[str, Any]:
        if STAMP not in (command.ext or {}):
            return self.groups.to_json()
        if names is None:
            tree = {**self.groups.to_json(), "queueLocks": self.locks(None)}
        else:
            locked = {name for name in names if name.startswith(LOCKS_OF)}
            tree = self.groups.some_json(names - locked - {""})
            if locked:
                tree["queueLocks"] = self.locks(name.removeprefix(LOCKS_OF) for name in locked)
        users = self.users() if names is None or "" in names else None
        return tree if users is None else {**tree, "access": users}

    def handle_get_all_message_request_mode(self, command: Command, connection: Peer) -> Command:
        """Every group pulls: there is no POP to be switched to."""
        return command.reply(body=dumps({"messageRequestModeMap": {}}))

    async def _progress(
        self, command: Command, file: SavedFile, tree: Callable[[], dict[str, Any]]
    ) -> Command:
        end = self.resting.end
        answer = self._answer(command, file, tree)
        if STAMP in (command.ext or {}):
            answer.ext = {**(answer.ext or {}), RESTS_ON: str(end)}
        elif not await self.resting.shared(end):
            raise Refused(ResponseCode.SYSTEM_BUSY, "the log is not confirmed up to this progress")
        return answer

    def _follow(
        self, command: Command, file: SavedFile, tree: Callable[..., dict[str, Any]]
    ) -> Command | Awaitable[Command]:
        """Of topics and groups: what changed since the asker's last answer, as soon as something has."""
        ext = command.ext or {}
        life, _, counted = ext.get(STAMP, "").partition("-")
        reader = ext.get(READER, "")
        if STAMP not in ext or not reader.isdigit():
            return self._answer(command, file, lambda: tree(command))
        generation = int(counted) if life == self._life and counted.isdigit() else -1
        incarnation = ext.get(READER_LIFE, "")
        self.readers.has(
            int(reader), int(incarnation) if incarnation.isdigit() else 0, command.code, generation
        )
        if HOLD in ext and generation == file.generation:
            return self._held(command, file, tree, generation)
        return self._changes(command, file, tree, generation)

    async def _held(
        self,
        command: Command,
        file: SavedFile,
        tree: Callable[..., dict[str, Any]],
        generation: int,
    ) -> Command:
        await file.newer(generation, HOLD_MS)
        return self._changes(command, file, tree, generation)

    def _changes(
        self,
        command: Command,
        file: SavedFile,
        tree: Callable[..., dict[str, Any]],
        generation: int,
    ) -> Command:
        names = file.changed_since(generation)
        if names is None:
            answer = self._answer(command, file, lambda: tree(command))
            assert answer.ext is not None  # the asker named a stamp
            answer.ext[HOLD] = "true"
            return answer
        stamp = {STAMP: f"{self._life}-{file.generation}", HOLD: "true"}
        if generation == file.generation:
            return command.reply(ext={**stamp, UNCHANGED: "true"})
        return command.reply(ext={**stamp, CHANGES: "true"}, body=dumps(tree(command, names)))

    def _answer(
        self, command: Command, file: SavedFile, tree: Callable[[], dict[str, Any]]
    ) -> Command:
        known = (command.ext or {}).get(STAMP)
        if known is None:
            return command.reply(body=dumps(tree()))
        stamp = f"{self._life}-{file.generation}"
        if known == stamp:
            return command.reply(ext={STAMP: stamp, UNCHANGED: "true"})
        return command.reply(ext={STAMP: stamp}, body=dumps(tree()))
