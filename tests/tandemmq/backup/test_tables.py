"""Progress of a restored store may repeat, never skip."""

from __future__ import annotations

from tandemmq.backup.tables import (
    TRANSACTION_GROUP,
    cut_progress,
    delay_progress,
    known_deletions,
    with_groups,
    with_queues,
)

QUEUES = {"Orders": {0: 5, 3: 7}}


def test_positions_behind_the_end_of_their_queue_are_moved_back_to_it() -> None:
    table = {
        "dataVersion": {"counter": 1},
        "offsetTable": {"Orders@billing": {0: 9, 3: 2}, "Gone@billing": {"0": 4}},
        "aheadOffsetTable": {"Orders@billing": {"0": 10}},
    }
    found, moved = cut_progress(table, QUEUES, later=False)
    assert found == {
        "dataVersion": {"counter": 1},
        "offsetTable": {"Orders@billing": {"0": 5, "3": 2}, "Gone@billing": {"0": 0}},
    }
    assert moved == 2


def test_what_transactions_have_done_with_counts_only_where_it_was_saved_before_the_point() -> None:
    half = f"RMQ_SYS_TRANS_HALF_TOPIC@{TRANSACTION_GROUP}"
    queues = {"RMQ_SYS_TRANS_HALF_TOPIC": {0: 8}}
    table = {"offsetTable": {half: {"0": 6}}}
    assert cut_progress(table, queues, later=False) == (table, 0)
    assert cut_progress(table, queues, later=True) == ({"offsetTable": {}}, 1)


def test_progress_of_delay_levels_must_rest_on_the_log_that_is_there() -> None:
    newer = {"offsetTable": {"1": 9}, "restsOn": 120}
    older = {"offsetTable": {"1": 4}, "restsOn": 60}
    stock = {"offsetTable": {1: 7}}  # says nothing: rests on what was there when it was read
    assert delay_progress([(130, newer), (70, older)], 125) == newer
    assert delay_progress([(130, newer), (70, older)], 119) == older
    assert delay_progress([(130, newer), (70, older)], 59) is None
    assert delay_progress([(130, stock)], 130) == {**stock, "restsOn": 130}
    assert delay_progress([(130, stock)], 129) is None
    assert delay_progress([], 129) is None


def test_a_deletion_behind_the_point_had_not_happened() -> None:
    table = {"deletedTopics": {"Before": 50, "At": 60, "After": 61}, "format": 1}
    assert known_deletions(table, 60) == {"deletedTopics": {"Before": 50, "At": 60}, "format": 1}


def test_every_queue_of_the_log_has_a_topic() -> None:
    newer = {"topicConfigTable": {"Orders": {"perm": 4}, "Empty": {"perm": 6}}, "dataVersion": 1}
    older = {"topicConfigTable": {"Orders": {"perm": 2}, "Deleted": {"perm": 2}}}
    queues = {**QUEUES, "Deleted": {0: 1}, "Unknown": {0: 1, 6: 1}}
    found, made = with_queues(newer, older, queues)
    topics = found["topicConfigTable"]
    assert made == ["Unknown"] and found["dataVersion"] == 1
    assert topics["Orders"] == {"perm": 4} and topics["Deleted"] == {"perm": 2}
    assert topics["Unknown"]["writeQueueNums"] == topics["Unknown"]["readQueueNums"] == 7
    assert set(topics) == {"Orders", "Empty", "Deleted", "Unknown"}


def test_groups_that_were_deleted_behind_the_point_are_there_again() -> None:
    name = "subscriptionGroupTable"
    newer, older = {name: {"a": 1}}, {name: {"a": 0, "b": 2}}
    assert with_groups(newer, older) == {name: {"a": 1, "b": 2}}
    assert with_groups({}, {}) == {name: {}}
