"""The broker's topics: which exist, how many queues they have and who may use them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables import names
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.broker.tables.versions import DataVersion
from tandemmq.cluster.remoting import bodies
from tandemmq.cluster.remoting.headers import Int32
from tandemmq.storage import Clock, StoreNotWritable

FilterType = Annotated[str, bodies.enum_of("SINGLE_TAG", "MULTI_TAG")]


class TopicConfig(msgspec.Struct, rename="camel"):
    """One topic as topics.json, registrations and tools write it.

    Source: docs/formats.md "topics.json and subscriptionGroup.json".
    """

    topic_name: str = ""
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: FilterType = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = {}

    @property
    def readable(self) -> bool:
        return bool(self.perm & names.PERM_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & names.PERM_WRITE)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def _ignored(changed: list[TopicConfig]) -> None:
    """No one listens yet."""


def _no_one_to_tell() -> None:
    """No one has to be told."""


class TopicTable:
    """Topics by name, kept in config/topics.json.

    `on_change` is called with every topic that was made or changed: the name servers must hear.
    `announced` waits until they did, None when there is no one: who reads the answer to what made a
    topic may ask for its route next, and a client that finds none looks again only after 20 s.
    A topic is on disk before anything sent to it is acknowledged, so a restart forgets no topic that
    holds messages.
    Source: RocketMQ's TopicConfigManager.
    """

    def __init__(self, config: BrokerConfig, path: Path, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._topics: dict[str, TopicConfig] = {}
        self.file = SavedFile(path, self._encoded)
        self.version = DataVersion(timestamp=clock.now_ms())
        self.system_topics: set[str] = set(names.SYSTEM_TOPICS)
        self.following = False  # a slave: the version is its master's, whatever is made here
        self.on_change: Callable[[list[TopicConfig]], None] = _ignored
        self.announced: Callable[[], Awaitable[None] | None] = _no_one_to_tell

    # -- reading -----------------------------------------------------------------------

    def get(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def all(self) -> Iterable[TopicConfig]:
        return self._topics.values()

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def is_system(self, name: str) -> bool:
        """Whether an administrator must leave this topic alone."""
        return name in self.system_topics or name.startswith(names.SYSTEM_TOPIC_PREFIX)

    @staticmethod
    def check_topic_name(name: str) -> str | None:
        """What is wrong with a name; None when it may be used."""
        return names.check_topic_name(name)

    def to_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.to_json(),
            "topicConfigTable": {name: topic.to_json() for name, topic in self._topics.items()},
        }

    def _encoded(self) -> bytes:
        """to_json() as JSON: with ten thousand topics, and one of them changed, a tenth of the time."""
        tree = {"dataVersion": self.version.to_json(), "topicConfigTable": self._topics}
        return msgspec.json.encode(tree)

    # -- at start ----------------------------------------------------------------------

    def load(self) -> None:
        """Read the file over the built-in topics; a new store gets its file at once."""
        for topic in self._built_in():
            self._topics[topic.topic_name] = topic
            self.system_topics.add(topic.topic_name)
        found = self.file.load()
        if found is None:
            self._advance()
        else:
            known = set(self._topics)
            for name, entry in (found.get("topicConfigTable") or {}).items():
                topic = bodies.shaped(TopicConfig, entry)
                topic.topic_name = name
                self._topics[name] = topic
                known.discard(name)
            self.version = DataVersion.from_json(found.get("dataVersion"), self._clock.now_ms())
            if known:  # a release before ours did not have these
                self._advance()
        self.file.save()

    def _built_in(self) -> list[TopicConfig]:
        config = self._config
        every, inherit = names.PERM_READ | names.PERM_WRITE, names.PERM_INHERIT
        made = [
            ("SELF_TEST_TOPIC", 1, every),
            ("BenchmarkTest", 1024, every),
            (config.cluster, 16, every | inherit if config.cluster_topic_enabled else inherit),
            (config.name, 1, every | inherit if config.broker_topic_enabled else inherit),
            ("OFFSET_MOVED_EVENT", 1, every),
            (names.SCHEDULE_TOPIC, len(config.storage.delay_levels.split()), every),
            (f"{config.cluster}_REPLY_TOPIC", 1, every),
            (f"rmq_sys_REVIVE_LOG_{config.cluster}", 8, every),
            (f"rmq_sys_SYNC_BROKER_MEMBER_{config.name}", 1, inherit),
            (names.HALF_TOPIC, 1, every),
            (names.OP_TOPIC, 1, every),
        ]
        if config.auto_create_topic:
            made.append((names.AUTO_CREATE_TOPIC, config.default_topic_queues, every | inherit))
        if config.trace_topic_enabled:
            made.append((config.trace_topic, 1, every))
        if config.timer_wheel_enabled:
            made.append((names.TIMER_TOPIC, 1, every))
        return [
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            for name, queues, perm in made
        ]

    # -- making and changing -----------------------------------------------------------

    def create_for_send(
        self, topic: str, default_topic: str, queue_count: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """The topic, made after `default_topic` if it does not exist; None when it may not be.

        Blocks until the new topic is on disk. Raises StoreNotWritable.
        Source: RocketMQ's TopicConfigManager.createTopicInSendMessageMethod.
        """
        found = self._topics.get(topic)
        if found is not None:
            return found
        template = self._topics.get(default_topic)
        if template is None or names.check_topic_name(topic) is not None:
            return None
        if default_topic == names.AUTO_CREATE_TOPIC and not self._config.auto_create_topic:
            # The file still has it from a time when auto-creation was on: nothing may inherit from
            # it any more.
            template.perm &= ~names.PERM_INHERIT
            return None
        if not template.perm & names.PERM_INHERIT or self._auto_created_enough():
            return None
        queues = max(0, min(queue_count, template.write_queue_nums))
        made = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=template.perm & ~names.PERM_INHERIT,
            topic_filter_type=template.topic_filter_type,
            topic_sys_flag=sys_flag,
        )
        with self._kept_only_if_saved([made]):
            self.file.save()
        self.on_change([made])
        return made

    def create_for_retry(
        self,
        topic: str,
        queue_count: int,
        perm: Int32 = 6,
        *,
        order: bool = False,
        wait: bool = True,
    ) -> TopicConfig | None:
        """A group's %RETRY% or %DLQ% topic, made if it is not there; None for a bad name.

        wait   True blocks until it is on disk; False leaves that to the caller's `await
               table.file.saved()`
        """
        found = self._topics.get(topic)
        if found is not None:
            return found
        if names.check_topic_name(topic) is not None:
            return None
        made = TopicConfig(
            topic_name=topic,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=perm,
            order=order,
        )
        with self._kept_only_if_saved([made]):
            if wait:
                self.file.save()
        self.on_change([made])
        return made

    async def put(self, *topics: TopicConfig) -> None:
        """Make or replace topics; returns when they are on disk and the name servers know.

        Names were checked by the caller.
        """
        changed = [topic for topic in topics if self._topics.get(topic.topic_name) != topic]
        if changed:
            with self._kept_only_if_saved(changed):
                await self.file.saved()
            self.on_change(changed)
            if (told := self.announced()) is not None:
                await told

    async def delete(self, name: str) -> bool:
        """Forget a topic; True when there was one. Its queues are the store's business."""
        if not self.forget(name):
            return False
        await self.file.saved()
        return True

    def forget(self, name: str) -> bool:
        """As delete(), and the caller sees to it that it is saved."""
        if self._topics.pop(name, None) is None:
            return False
        self._advance(name)
        return True

    def set_ordered(self, ordered: Iterable[str]) -> None:
        """Mark topics as ordered, as the name servers' order configuration says.

        Nothing ever unmarks one.
        """
        changed = [
            t for name in ordered if (t := self._topics.get(name)) is not None and not t.order
        ]
        for topic in changed:
            topic.order = True
        if changed:
            self._advance(*(topic.topic_name for topic in changed))

    # -- a slave's table follows its master's ------------------------------------------

    def adopt(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> list[str]:
        """Become the master's table at once; the names of topics that it does not have any more.

        Topics that every broker of ours makes for itself stay where an older master lacks them.
        """
        built_in = {name: t for name, t in self._topics.items() if name in self.system_topics}
        wanted = {**built_in, **topics}
        gone = [name for name in self._topics if name not in wanted]
        if wanted != self._topics or version != self.version:
            self._topics = wanted
            self.version = version
            self.file.changed()
        return gone

    def merge(
        self, topics: Mapping[str, TopicConfig], gone: Iterable[str], version: DataVersion
    ) -> None:
        """Follow the master's last changes: these topics are new or changed, those are gone."""
        self._topics.update(topics)
        gone = [name for name in gone if self._topics.pop(name, None) is not None]
        self.version = version
        self.file.changed(*topics, *gone)

    def cover(self, queue_counts: Mapping[str, int]) -> list[str]:
        """Make the topics that hold messages and are unknown; their names.

        For a slave that becomes the master: a topic may be so new that only its messages came over.
        queue_counts  by topic
        """
        made = [
            TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count)
            for name, count in queue_counts.items()
            if name not in self._topics and names.check_topic_name(name) is None
        ]
        if made:
            self._add(made)
            self.on_change(made)
        return [topic.topic_name for topic in made]

    def permission_changed(self) -> None:
        """brokerPermission changed: the same topics mean something else to the name servers now."""
        self._advance()

    @contextlib.contextmanager
    def _kept_only_if_saved(self, topics: list[TopicConfig]) -> Iterator[None]:
        """Add topics; when the body fails to save them, what was there before is there again.

        Else the next send would find a topic that a restart forgets. Raises StoreNotWritable.
        """
        former = {topic.topic_name: self._topics.get(topic.topic_name) for topic in topics}
        self._add(topics)
        try:
            yield
        except OSError as problem:
            for topic in topics:
                name = topic.topic_name
                before = former[name]
                if self._topics.get(name) is not topic:
                    continue
                if before is None:
                    del self._topics[name]
                else:
                    self._topics[name] = before
            self._advance(*former)
            raise StoreNotWritable(
                f"topic {topics[0].topic_name} cannot be saved: {problem.strerror or problem}"
            ) from problem

    def reign_began(self, epoch: int) -> None:
        """We are the master of this epoch now: name servers believe the version of a later one."""
        if epoch > self.version.state_version:
            self.version.state_version = epoch
            self._advance()

    def _add(self, topics: list[TopicConfig]) -> None:
        for topic in topics:
            self._topics[topic.topic_name] = topic
        self._advance(*(topic.topic_name for topic in topics))

    def _advance(self, *names: str) -> None:
        if not self.following:
            self.version.advance(self._clock.now_ms())
        self.file.changed(*names)

    def _auto_created_enough(self) -> bool:
        # Anybody who may send may make topics; a bound keeps a broken client from filling the disk
        # with queues.
        return len(self._topics) >= self._config.auto_create_topics_max
