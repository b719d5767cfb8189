"""The ledger sees each kind of violation, and none where there is none."""

import pytest

from tests.proofs.ledger import Ledger, Receipt


@pytest.fixture
def ledger() -> Ledger:
    """Return a ledger in which `a` was sent and acknowledged."""
    ledger = Ledger()
    ledger.send_asked(["a"])
    ledger.send_told(["a"])
    return ledger


def receive(ledger: Ledger, at_s: float, count: int, body: str = "a") -> Receipt:
    """Note a delivery asked for at `at_s` and told a tenth later, with a lease of 2 s."""
    return ledger.received(body, "handle", count, asked_s=at_s, told_s=at_s + 0.1, timeout_s=2)


def test_an_honest_run_has_no_violation(ledger: Ledger) -> None:
    """Received, expired, received, released, received, deleted."""
    receive(ledger, 10, 1)
    held = receive(ledger, 12, 2)
    ledger.change_asked(held, asked_s=12.5, timeout_s=0)
    ledger.change_told(held, asked_s=12.5, told_s=12.6, timeout_s=0)
    last = receive(ledger, 12.7, 3)
    ledger.delete_asked(last)
    ledger.delete_told(last, told_s=13)
    assert ledger.settle(set()) == []


def test_what_was_not_told_may_be_either(ledger: Ledger) -> None:
    """An unanswered send, delete, change and receive break nothing, whatever came of them."""
    ledger.send_asked(["b"])
    held = receive(ledger, 10, 2)
    ledger.receive_untold()
    ledger.change_asked(held, asked_s=10.5, timeout_s=0)
    ledger.delete_asked(receive(ledger, 10.6, 3))
    assert ledger.settle(set()) == []
    assert ledger.settle({"a", "b"}) == []


def test_a_lost_message(ledger: Ledger) -> None:
    """Acknowledged, never deleted, not there."""
    assert "lost" in ledger.settle(set())[0]


def test_a_message_that_comes_back(ledger: Ledger) -> None:
    """Deleted with the current receipt, and delivered, or found at the end."""
    held = receive(ledger, 10, 1)
    ledger.delete_asked(held)
    ledger.delete_told(held, told_s=11)
    assert "still there" in ledger.settle({"a"})[0]
    receive(ledger, 20, 2)
    assert "came back" in ledger.settle(set())[0]


def test_a_delete_with_a_receipt_that_may_be_old_proves_nothing(ledger: Ledger) -> None:
    """Its message may come back."""
    held = receive(ledger, 10, 1)
    ledger.delete_asked(held)
    ledger.delete_told(held, told_s=12.5)
    receive(ledger, 20, 2)
    assert ledger.settle({"a"}) == []


def test_a_message_before_its_deadline(ledger: Ledger) -> None:
    """Delivered while it was hidden for certain, by a receive or by a change."""
    held = receive(ledger, 10, 1)
    ledger.change_asked(held, asked_s=11, timeout_s=5)
    ledger.change_told(held, asked_s=11, told_s=11.1, timeout_s=5)
    receive(ledger, 15, 2)
    receive(ledger, 15.5, 3)
    early = [violation.split()[5] for violation in ledger.settle({"a"})]
    assert early == ["899", "1399"]


@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (2,)], ids=["repeated", "skipped", "too-high"])
def test_a_wrong_count(ledger: Ledger, counts: tuple[int, ...]) -> None:
    """Counts repeat, or exceed the receives that there can have been."""
    for number, count in enumerate(counts):
        receive(ledger, 10 + 10 * number, count)
    assert len(ledger.settle({"a"})) == 1


def test_a_message_that_nobody_sent(ledger: Ledger) -> None:
    """A body that no client has sent."""
    receive(ledger, 10, 1, body="ghost")
    assert "never sent" in ledger.settle({"a"})[0]
