"""tables/savedfile.py: a table that must not outlive the log it rests on is written all the same (INV-41)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tandemmq.cluster.broker.tables.savedfile import SavedFile


class Log:
    """A log that grows with every look at it; what is confirmed of it trails."""

    def __init__(self) -> None:
        self.at = 0
        self.confirmed = 0

    @property
    def end(self) -> int:
        return self.at

    def settled(self, end: int) -> bool:
        return self.confirmed >= end

    async def settle(self, end: int) -> bool:
        await asyncio.sleep(0)
        return self.settled(end)


class Table:
    """What it holds is how long its log is."""

    def __init__(self, root: Path) -> None:
        self.log = Log()
        self.file = SavedFile(root / "table.json", lambda: {"restsOn": self.log.at})
        self.file.rests = self.log

    def grow(self, size: int = 10) -> None:
        self.log.at += size
        self.file.changed()

    def on_disk(self) -> int | None:
        found: dict[str, Any] | None = self.file.load()
        return None if found is None else found["restsOn"]


def test_a_table_that_never_stops_changing_is_saved_though_its_log_trails(tmp_path: Path) -> None:
    """INV-41 asks that nothing is saved too early, and not that nothing is saved."""
    table = Table(tmp_path)

    async def main() -> None:
        for _ in range(30):
            table.grow()
            await table.file.saved()
            table.log.confirmed = table.log.at - 15  # what was there one and a half turns ago
            found = table.on_disk() or 0
            assert found <= max(table.log.confirmed, 0), "never before it is confirmed"
        assert found >= table.log.at - 50

    asyncio.run(main())


def test_what_waits_is_written_at_a_stop_where_the_newest_may_not_be(tmp_path: Path) -> None:
    table = Table(tmp_path)

    async def main() -> None:
        table.grow()
        await table.file.saved()
        table.grow()

    asyncio.run(main())
    assert table.on_disk() is None
    table.log.confirmed = 10
    table.file.save()
    assert table.on_disk() == 10
    assert table.file.unsaved
    table.log.confirmed = 20
    table.file.save()
    assert (table.on_disk(), table.file.unsaved) == (20, False)


def test_what_waited_for_a_part_of_the_log_that_was_cut_is_never_written(tmp_path: Path) -> None:
    """INV-41: other bytes come to be confirmed where it had rested."""
    table = Table(tmp_path)

    async def main() -> None:
        table.grow(100)
        await table.file.saved()
        table.file.cut(40)
        table.log.at = 40
        table.log.confirmed = 150
        table.file.changed()
        await table.file.saved()
        assert table.on_disk() == 40

    asyncio.run(main())


def test_a_cut_while_the_log_is_waited_for_takes_what_waits_with_it(tmp_path: Path) -> None:
    table = Table(tmp_path)

    async def main() -> None:
        table.grow(100)
        saving = asyncio.create_task(table.file.saved())
        await asyncio.sleep(0)
        table.file.cut(40)
        table.log.at = 40
        table.log.confirmed = 150
        await saving
        assert table.on_disk() == 40

    asyncio.run(main())


def test_what_a_cut_took_back_is_on_the_disk_before_the_log_grows_again(tmp_path: Path) -> None:
    """Else a later start reads progress that rests on bytes which are others by then."""
    table = Table(tmp_path)
    table.grow(20)
    table.log.confirmed = 20
    table.file.save()
    table.log.at = table.log.confirmed = 10  # what is left is not confirmed to us any more
    table.log.confirmed = 0
    table.file.changed()
    table.file.save()
    assert table.on_disk() == 20
    table.file.take_back()
    assert (table.on_disk(), table.file.unsaved) == (10, False)
