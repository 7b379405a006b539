"""A broker killed -9 under load loses nothing that it acknowledged; a lossy one is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.chaos.kills import Run, Settings
from tandemmq.storage import inspect_store

pytestmark = pytest.mark.system


@pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])
async def test_nothing_acknowledged_is_lost_in_five_kills(tmp_path: Path, sync_flush: bool) -> None:
    # INV-5, INV-7
    said: list[str] = []
    settings = Settings(5, 20261121, tmp_path, sync_flush, load_s=0.4, full_every=3)
    outcome = await Run(settings, said.append).run()
    assert outcome.problems == []
    assert (outcome.rounds, outcome.kills + outcome.clean_stops) == (5, 5)
    assert outcome.acknowledged > 100
    assert outcome.messages_read >= outcome.acknowledged
    assert len(said) == 5


class Lossy(Run):
    """Between kill and restart the newest bytes of the log vanish, as if never written."""

    async def _kill_in_recovery(self) -> int:
        report = inspect_store(self._broker.store)
        end = report.log_end
        for path in (self._broker.store / "commitlog").iterdir():
            start = int(path.name)
            if start < end <= start + path.stat().st_size:
                cut = max(0, end - start - 20_000)
                with path.open("r+b") as file:
                    file.seek(cut)
                    file.write(bytes(end - start - cut))
        return 0


async def test_a_broker_that_loses_acknowledged_messages_is_caught(tmp_path: Path) -> None:
    outcome = await Lossy(Settings(3, 5, tmp_path, load_s=0.4, catch_up_s=1), lambda _: None).run()
    assert not outcome.good
    assert any(problem.startswith("LOST") for problem in outcome.problems)
