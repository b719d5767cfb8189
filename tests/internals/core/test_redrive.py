"""Which queue may serve which as its dead-letter queue."""

import pytest

from veilmq.core.settings import QueueSettings, account_of, allows_source, dead_letter_refusal

STANDARD = QueueSettings()
FIFO = QueueSettings(fifo=True)
LISTED = QueueSettings(redrive_permission="listed", redrive_sources=("a/jobs", "a/more"))


@pytest.mark.parametrize(
    ("target", "theirs", "why"),
    [
        ("a/dead", STANDARD, None),
        ("a/dead", QueueSettings(redrive_permission="all"), None),
        ("a/dead", LISTED, None),
        ("a/jobs", STANDARD, "its own"),
        ("b/dead", STANDARD, "another account"),
        ("a/dead", None, "does not exist"),
        ("a/dead", FIFO, "another type"),
        ("a/dead", QueueSettings(redrive_permission="none"), "does not allow"),
        ("a/dead", QueueSettings(redrive_permission="listed", redrive_sources=("a/more",)), "does not allow"),
    ],
)
def test_a_dead_letter_queue_serves_or_is_refused_for_a_reason(
    target: str, theirs: QueueSettings | None, why: str | None
) -> None:
    found = dead_letter_refusal("a/jobs", STANDARD, target, theirs)
    assert found is None if why is None else why in (found or "")


def test_a_fifo_queue_needs_a_fifo_one() -> None:
    assert dead_letter_refusal("a/jobs", FIFO, "a/dead", FIFO) is None
    assert "another type" in (dead_letter_refusal("a/jobs", FIFO, "a/dead", STANDARD) or "")


def test_a_list_is_of_full_names() -> None:
    assert allows_source(LISTED, "a/jobs")
    assert not allows_source(LISTED, "b/jobs")
    assert not allows_source(LISTED, "jobs")


def test_the_account_is_what_stands_before_the_name() -> None:
    assert account_of("000000000000/jobs") == "000000000000"
