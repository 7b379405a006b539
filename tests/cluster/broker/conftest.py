"""Fixtures of the broker's tests; what they hand out is in brokerkit.py and messagekit.py."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the kits beside this file

from brokerkit import SMALL_STORE, Asker, MakeBroker, TwoClocks

from tandemmq.cluster.broker.broker import Broker
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.storage import open_store


@pytest.fixture
def clock() -> TwoClocks:
    return TwoClocks()


@pytest.fixture
def make_broker(tmp_path: Path, clock: TwoClocks) -> Iterator[MakeBroker]:
    """Open a broker; keywords are lines of its broker.conf."""
    with ExitStack() as stack:

        def make(file: str = "", **settings: str) -> Asker:
            properties = {
                "storePathRootDir": str(tmp_path / "store"),
                "brokerName": "broker-a",
                "brokerIP1": "127.0.0.1",
                **SMALL_STORE,
                **settings,
            }
            config = BrokerConfig.from_properties(properties, file=file, environment={})
            store = stack.enter_context(open_store(config.storage, clock))
            broker = Broker(config, store, clock, random.Random(1))
            broker.load()
            return Asker(broker, clock)

        yield make


@pytest.fixture
def asker(make_broker: MakeBroker) -> Asker:
    return make_broker()
