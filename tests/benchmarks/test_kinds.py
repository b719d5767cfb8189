"""The kinds of queues that are measured beside the standard one."""

from benchmarks.groups import _entries
from benchmarks.kinds import LOGGED_PAIRS, PAIRS, STANDARD


def test_each_kind_has_a_queue_of_its_own_and_fifo_queues_are_named_so() -> None:
    kinds = [STANDARD, *(kind for kind, _ in (*PAIRS, *LOGGED_PAIRS))]
    assert len({kind.queue(turn) for kind in kinds for turn in range(2)}) == 2 * len(kinds)
    assert all(kind.queue(0).endswith(".fifo") == ("FifoQueue" in kind.attributes) for kind in kinds)


def test_a_standard_queue_is_sent_constant_requests() -> None:
    assert STANDARD.environment == {}


def test_no_two_entries_of_a_run_have_one_deduplication_id() -> None:
    names = [f"g{n % 3}" for n in range(25)]
    entries = [entry for start in range(0, 25, 10) for entry in _entries(names, start, "run")]
    assert [entry["MessageGroupId"] for entry in entries] == names
    assert len({entry["MessageDeduplicationId"] for entry in entries}) == 25
