"""A broker that asks nobody who they are, and which of the two a broker is by its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.tables.savedfile import SavedFile
from tandemmq.cluster.process import Job
from tandemmq.cluster.remoting.connection import ChunkHandler
from tandemmq.storage import Clock, MessageStore

if TYPE_CHECKING:
    from tandemmq.cluster.broker.access.guarding import Guarding


class Unguarded:
    """In place of Guarding: everybody comes in, there are no users, and a master's are of no use here."""

    keeper: Final = None

    def __init__(self, config: BrokerConfig) -> None:
        self.file = SavedFile(config.users_path, dict)  # never changed, so never written

    def vouches(self, connection: object) -> bool:
        return True

    def may_send(self, name: str, host: str, topic: str) -> bool:
        return True

    def in_front_of(self, path: ChunkHandler) -> ChunkHandler:
        return path

    def load(self) -> None:
        """There is nothing to be read."""

    def shared_tree(self) -> dict[str, Any] | None:
        return None

    def adopt(self, tree: Mapping[str, Any]) -> None:
        """Who becomes guarded at a later start takes the users of its master then."""

    def jobs(self) -> dict[str, Job]:
        return {}


def guarding_of(
    config: BrokerConfig,
    store: MessageStore,
    clock: Clock,
    shared: Callable[[], None],
    served: Callable[[int], bool],
) -> Guarding | Unguarded:
    """What the settings ask for; shared and served as of Guarding."""
    rights = config.rights
    if not (config.access.authentication or rights.plain or rights.migrated):
        return Unguarded(config)
    # Imported when wanted: users, rules and what each request needs would cost every start time and memory.
    from tandemmq.cluster.broker.access.guarding import Guarding

    return Guarding(config, store, clock, shared, served)
