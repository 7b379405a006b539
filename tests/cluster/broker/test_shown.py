"""Request 26: RocketMQ's settings under their names, with the values that they have here."""

from __future__ import annotations

import base64
import json
import lzma
from pathlib import Path

from brokerkit import MakeBroker

from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.broker.settings.known_keys import WITHOUT_EFFECT
from tandemmq.cluster.broker.settings.shown import FIXED, shown_settings
from tandemmq.cluster.broker.settings.startable import check_startable
from tandemmq.cluster.config import Properties, keys_of, parse_properties
from tandemmq.cluster.remoting.codes import RequestCode

WIRE = Path(__file__).parents[2] / "golden" / "wire" / "b53-c53-json.jsonl.xz"


def of_rocketmq() -> Properties:
    """What RocketMQ 5.3.3 answered when asked for its settings."""
    with lzma.open(WIRE, "rt") as lines:
        answer = next(line for line in map(json.loads, lines) if line.get("req") == 26)
    frame = base64.b64decode(answer["b"])
    return parse_properties(frame[len(frame) - answer["bodyLen"] :].decode())


def test_every_setting_that_means_the_same_here_is_shown_and_the_others_are_listed() -> None:
    shown = shown_settings(BrokerConfig.from_properties({}, environment={}))
    listed = {key for key in of_rocketmq() if key not in shown}
    assert listed <= WITHOUT_EFFECT.keys()  # docs/config.md lists these
    assert {
        "storeType",
        "aclEnable",
        "enableDLegerCommitLog",
        "brokerIP1",
        "useTLS",
    } <= shown.keys()


async def test_what_has_one_value_here_shows_it_whatever_a_file_says(
    make_broker: MakeBroker,
) -> None:
    asker = make_broker(
        transientStorePoolEnable="true", brokerFastFailureEnable="true", httpToken="s" * 20
    )
    answer = await asker.ask(RequestCode.GET_BROKER_CONFIG)
    shown = parse_properties(bytes(answer.body or b"").decode())
    assert shown["transientStorePoolEnable"] == shown["brokerFastFailureEnable"] == "false"
    assert shown["rejectTransactionMessage"] == "false" and shown["timerWheelEnable"] == "true"
    root = shown["storePathRootDir"]
    assert shown["storePathCommitLog"] == f"{root}/commitlog"
    assert shown["storePathEpochFile"] == f"{root}/epochFileCheckpoint"
    assert (shown["brokerIP1"], shown["bindAddress"]) == ("127.0.0.1", "127.0.0.1")
    assert shown["httpToken"] == "******"


def test_a_file_that_rocketmq_wrote_with_all_its_settings_is_served() -> None:
    """updateBrokerConfig of RocketMQ writes every setting into the file, defaults and addresses too."""
    written = of_rocketmq() | {"bindAddress": "0.0.0.0", "brokerRole": "ASYNC_MASTER"}
    config = BrokerConfig.from_properties(written, as_rocketmq=True, environment={})
    check_startable(config)
    assert config.bind_host == "0.0.0.0"


def test_fixed_values_are_of_settings_that_nobody_reads_or_that_have_no_other() -> None:
    used = keys_of(BrokerConfig).keys()
    assert not FIXED.keys() & used
    assert FIXED.keys() - used <= WITHOUT_EFFECT.keys()
