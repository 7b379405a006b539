"""The broker's subscription groups: what each may do and how often its messages are tried again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.versions import DataVersion
from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.headers import Int32, Int64
from tandemmq.storage import Clock

#: bit of the forbidden table that stops a group from reading a topic
FORBIDDEN_READ = 1 << 2
#: in front of a group whose queue locks changed, in the file's names of changes; no group is called so
LOCKS_OF = ":"


class GroupConfig(msgspec.Struct, rename="camel", omit_defaults=False):
    """One group as subscriptionGroup.json and tools write it; missing members take these defaults.

    Source: docs/formats.md "topics.json and subscriptionGroup.json".
    """

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    group_retry_policy: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "CUSTOMIZED"}
    )
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    subscription_data_set: list[dict[str, Any]] | None = None
    attributes: dict[str, str] = {}

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        if self.subscription_data_set is None:
            del found["subscriptionDataSet"]
        return found


class GroupTable:
    """Groups by name and what they are forbidden to read, kept in config/subscriptionGroup.json.

    Source: RocketMQ's SubscriptionGroupManager.
    """

    def __init__(self, config: BrokerConfig, path: Path, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._groups: dict[str, GroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self.file = SavedFile(path, self.to_json)
        self.version = DataVersion(timestamp=clock.now_ms())
        self.following = False  # a slave: the version is its master's, whatever is made here

    # -- reading -----------------------------------------------------------------------

    def get(self, name: str) -> GroupConfig | None:
        """The group if it exists."""
        return self._groups.get(name)

    def find(self, name: str) -> GroupConfig | None:
        """The group, made with the defaults if it does not exist and may be made; None otherwise.

        A new group is in memory at once and on disk with the next save: losing it loses nothing,
        the next heartbeat makes it again.
        """
        found = self._groups.get(name)
        if found is not None:
            return found
        allowed = self._config.auto_create_group or (
            self._config.create_system_groups and name.startswith(names.SYSTEM_GROUP_PREFIX)
        )
        if not allowed or names.check_group_name(name) is not None:
            return None
        if len(self._groups) >= self._config.auto_create_topics_max:
            return None
        made = GroupConfig(group_name=name)
        self._groups[name] = made
        self._advance(name)
        return made

    def all(self) -> Iterable[GroupConfig]:
        return self._groups.values()

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __contains__(self, name: object) -> bool:
        return name in self._groups

    def read_forbidden(self, group: str, topic: str) -> bool:
        """Whether an administrator forbade this group to read this topic."""
        topics = self._forbidden.get(group)
        return topics is not None and bool(topics.get(topic, 0) & FORBIDDEN_READ)

    def to_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.to_json(),
            "forbiddenTable": {group: dict(topics) for group, topics in self._forbidden.items()},
            "subscriptionGroupTable": {
                name: group.to_json() for name, group in self._groups.items()
            },
        }

    def some_json(self, names: Iterable[str]) -> dict[str, Any]:
        """Of these groups alone, those of them that are gone, and all that is forbidden."""
        found = {name: g.to_json() for name in names if (g := self._groups.get(name))}
        return {
            "dataVersion": self.version.to_json(),
            "forbiddenTable": {group: dict(topics) for group, topics in self._forbidden.items()},
            "gone": sorted(set(names) - found.keys()),
            "subscriptionGroupTable": found,
        }

    # -- at start ----------------------------------------------------------------------

    def load(self) -> None:
        """Read the file over the built-in groups; a new store gets its file at once."""
        for name in names.SYSTEM_GROUPS:
            self._groups[name] = GroupConfig(group_name=name)
        found = self.file.load()
        if found is None:
            self._advance()
        else:
            for name, entry in (found.get("subscriptionGroupTable") or {}).items():
                group = bodies.shaped(GroupConfig, entry)
                group.group_name = name
                self._groups[name] = group
            for name, topics in (found.get("forbiddenTable") or {}).items():
                self._forbidden[name] = {topic: int(bits) for topic, bits in topics.items()}
            self.version = DataVersion.from_json(found.get("dataVersion"), self._clock.now_ms())
        self.file.save()

    # -- changing ----------------------------------------------------------------------

    async def put(self, *groups: GroupConfig) -> None:
        """Make or replace groups; returns when they are on disk.

        Names were checked by the caller.
        """
        changed = [group for group in groups if self._groups.get(group.group_name) != group]
        for group in changed:
            self._groups[group.group_name] = group
        if changed:
            self._advance(*(group.group_name for group in changed))
            await self.file.saved()

    async def delete(self, name: str) -> bool:
        """Forget a group and what it is forbidden; True when there was one."""
        self._forbidden.pop(name, None)
        if self._groups.pop(name, None) is None:
            return False
        self._advance(name)
        await self.file.saved()
        return True

    async def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Allow or forbid a group to read one topic; returns when that is on disk."""
        if self.read_forbidden(group, topic) != readable:
            return
        topics = self._forbidden.setdefault(group, {})
        topics[topic] = topics.get(topic, 0) ^ FORBIDDEN_READ
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._forbidden[group]
        self._advance(group)
        await self.file.saved()

    # -- a slave's table follows its master's ------------------------------------------

    def adopt(
        self,
        groups: Mapping[str, GroupConfig],
        forbidden: Mapping[str, Mapping[str, int]] | None,
        version: DataVersion,
    ) -> list[str]:
        """Become the master's table at once; the names of groups that it does not have any more.

        forbidden  group -> topic -> bits; None: the master did not say
        Groups that exist on every broker stay.
        """
        kept = {name: g for name, g in self._groups.items() if name in names.SYSTEM_GROUPS}
        wanted = {**kept, **groups}
        forbids = (
            self._forbidden if forbidden is None else {n: dict(t) for n, t in forbidden.items()}
        )
        gone = [name for name in self._groups if name not in wanted]
        if (wanted, forbids, version) != (self._groups, self._forbidden, self.version):
            self._groups, self._forbidden, self.version = wanted, forbids, version
            self.file.changed()
        return gone

    def merge(
        self,
        groups: Mapping[str, GroupConfig],
        gone: Iterable[str],
        forbidden: Mapping[str, Mapping[str, int]] | None,
        version: DataVersion,
    ) -> None:
        """Follow the master's last changes: these groups are new or changed, those are gone."""
        self._groups.update(groups)
        gone = [name for name in gone if self._groups.pop(name, None) is not None]
        if forbidden is not None:
            self._forbidden = {name: dict(topics) for name, topics in forbidden.items()}
        self.version = version
        self.file.changed(*groups, *gone)

    def _advance(self, *names: str) -> None:
        if not self.following:
            self.version.advance(self._clock.now_ms())
        self.file.changed(*names)
