"""Access control of one broker: its users, its accounts, and the gate that both of its ports ask.

A slave's users are its master's: they come with the table of groups, and go on with it when the slave is elected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tandemmq.cluster.access.accounts import Accounts
from tandemmq.cluster.access.doorkeeper import Doorkeeper
from tandemmq.cluster.access.gate import AccountGuard, Gate, Guard, UserGuard
from tandemmq.cluster.access.needs import BROKER, PUB
from tandemmq.cluster.access.rights import Need, ResourceKind
from tandemmq.cluster.access.startup import INIT_USER
from tandemmq.cluster.access.users import UserDirectory
from tandemmq.cluster.broker.access.signedsends import SignedSends
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.config import ConfigError
from tandemmq.cluster.process import Job
from tandemmq.cluster.remoting.connection import ChunkHandler
from tandemmq.storage import Clock, CorruptFile, MessageStore, decode, get_property

log = logging.getLogger(__name__)

#: where messages wait that are for other topics; their own are in a property that the broker writes
_WAITING_ROOMS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "rmq_sys_wheel_timer",
    }
)
_OWNER_ONLY: Final = 0o600


class StoredFacts:
    """What the gate asks of the store."""

    def __init__(self, cluster: str, store: MessageStore) -> None:
        self.cluster = cluster
        self._store = store

    def topic_of(self, offset: int) -> str | None:
        """The topic that the message at a log offset was sent to; None where none begins."""
        view = self._store.stored_at(offset) if offset >= 0 else None
        if view is None:
            return None
        record = decode(view)
        if record.topic in _WAITING_ROOMS:
            real = get_property(record.properties, b"REAL_TOPIC")
            if real is not None:
                return real.decode("utf-8", "replace")
        return record.topic


class Guarding:
    """Whoever asks this broker is asked who they are, if the settings say so.

    users    of 2.0, kept in config/access.json
    keeper   what connections ask; None where everybody may come in
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        shared: Callable[[], None],
        served: Callable[[int], bool],
    ) -> None:
        """shared: called after each change of users; slaves learn of it then. served: whether a code has a handler."""
        self._config = config
        self._shared = shared
        self.users = UserDirectory(self._changed)
        self.file = SavedFile(config.users_path, self.users.to_json, mode=_OWNER_ONLY)
        facts = StoredFacts(config.cluster, store)
        rights = config.rights
        self._by_user = UserGuard(
            self.users,
            BROKER,
            facts,
            rights=rights.authorization,
            unsigned=rights.unsigned_codes,
            without_rules=rights.codes_without_rules,
        )
        self._by_account = AccountGuard(BROKER, facts)
        self.plain_files = None
        if rights.plain or rights.migrated:
            # Imported when wanted: most brokers read no YAML.
            from tandemmq.cluster.broker.access.plainfiles import PlainFiles

            self.plain_files = PlainFiles(rights.plain_path, self._accounts_changed)
        guards: list[Guard] = [self._by_account] if rights.plain else []
        if config.access.authentication:
            guards.append(self._by_user)
        self._sends: SignedSends | None = None
        self.keeper = Doorkeeper(Gate(guards, served), clock.monotonic_ms) if guards else None

    @property
    def accounts(self) -> Accounts:
        return self._by_account.accounts

    def vouches(self, connection: object) -> bool:
        """Whether the short path may take what it is shown: it reads no signature. Only where nobody is asked, or the
        gate was, just now."""
        return self.keeper is None or (self._sends is not None and self._sends.vouching)

    def may_send(self, name: str, host: str, topic: str) -> bool:
        """Whether whoever said so in a heartbeat is a producer of a topic."""
        need = Need(ResourceKind.TOPIC, topic, PUB)
        return self.keeper is None or self.keeper.gate.may(name, need, host)

    def in_front_of(self, path: ChunkHandler) -> ChunkHandler:
        """The short path for connections: as it is, or behind the gate."""
        if self.keeper is None:
            return path
        self._sends = SignedSends(self.keeper.gate, path)
        return self._sends.process

    def _changed(self, names: Iterable[str]) -> None:
        self._by_user.forget()
        self.file.changed()
        self._shared()

    def _accounts_changed(self, accounts: Accounts) -> None:
        self._by_account.accounts = accounts

    def load(self) -> None:
        """Read users and accounts. Raises ConfigError where nobody could come in, storage.CorruptFile, OSError."""
        if self.plain_files is not None:
            try:
                self.plain_files.load()
            except ValueError as problem:
                path = str(self.plain_files.path)
                raise ConfigError(
                    "aclEnable", "true", f"{path} and acl/ beside it: {problem}"
                ) from None
        if not self._config.access.authentication:
            return
        found = self.file.load()
        if found is not None:
            try:
                self.users.adopt(found)
            except ValueError as problem:
                raise CorruptFile(f"{self.file.path}: {problem}") from None
        if self._config.rights.migrated:
            self._migrate()
        self._ensure()
        if not self.users.has_super:
            raise ConfigError(
                "authenticationEnabled", "true", f"needs a Super user: give {INIT_USER}"
            )
        self.file.save()

    def _ensure(self) -> None:
        for user in self._config.access.users:
            if self.users.ensure(user):
                log.warning(
                    "the settings have another password than the store for user=%s, which keeps its own", user.name
                )  # fmt: skip

    def _migrate(self) -> None:
        """Make users and rules of accounts whose names are not known yet."""
        for name in self.users.migrate(self.accounts):
            log.info("user made from an account of ACL 1.0 user=%s", name)

    def shared_tree(self) -> dict[str, Any] | None:
        """All users and rules, for slaves; None where nobody's signature is checked: they would go to everybody."""
        return self.users.to_json() if self._config.access.authentication else None

    def adopt(self, tree: Mapping[str, Any]) -> None:
        """Become the master's users and rules. Raises ValueError; then nothing changed."""
        if self._config.access.authentication and self.users.adopt(tree):
            self._ensure()
            log.info("users and rules copied from the master users=%d", len(self.users))

    def jobs(self) -> dict[str, Job]:
        return {} if self.plain_files is None else {"accounts": self.plain_files.run}
