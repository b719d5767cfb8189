"""Tests of the proofs' own tools: the ledger, forked processes and the soak."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proofs.forking import Forked, run
from tests.proofs.ledger import GroupOrder, Ledger, Receipt, Unanswered, Unreached
from tests.proofs.soak import RESTARTED, TENTHS, Soak, Soaked, Tenth, failures


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.send_requested(["a"])
    ledger.send_acknowledged(["a"])
    return ledger


def receive(ledger: Ledger, at_s: float, count: int, body: str = "a") -> Receipt:
    """Record a delivery requested at `at_s` and answered 0.1 s later, with a lease of 2 s."""
    return ledger.received(body, "handle", count, requested_s=at_s, replied_s=at_s + 0.1, timeout_s=2)


def test_a_correct_run_has_no_violation(ledger: Ledger) -> None:
    receive(ledger, 10, 1)
    held = receive(ledger, 12, 2)
    ledger.change_requested(held, requested_s=12.5, timeout_s=0)
    ledger.change_acknowledged(held, requested_s=12.5, replied_s=12.6, timeout_s=0)
    last = receive(ledger, 12.7, 3)
    ledger.delete_requested(last)
    ledger.delete_acknowledged(last, replied_s=13)
    assert ledger.settle(set()) == []


def test_an_unanswered_request_may_or_may_not_have_happened(ledger: Ledger) -> None:
    ledger.send_requested(["b"])
    with pytest.raises(Unanswered), ledger.receiving():
        raise Unanswered
    held = receive(ledger, 10, 2)
    ledger.change_requested(held, requested_s=10.5, timeout_s=0)
    ledger.delete_requested(receive(ledger, 10.6, 3))
    assert ledger.settle(set()) == []
    assert ledger.settle({"a", "b"}) == []


def test_a_delivery_after_a_delete_is_a_violation(ledger: Ledger) -> None:
    held = receive(ledger, 10, 1)
    ledger.delete_requested(held)
    ledger.delete_acknowledged(held, replied_s=11)
    assert "still there" in ledger.settle({"a"})[0]
    receive(ledger, 20, 2)
    assert "delivered after its delete" in ledger.settle(set())[0]


def test_a_delete_by_a_possibly_expired_receipt_proves_nothing(ledger: Ledger) -> None:
    held = receive(ledger, 10, 1)
    ledger.delete_requested(held)
    ledger.delete_acknowledged(held, replied_s=12.5)
    receive(ledger, 20, 2)
    assert ledger.settle({"a"}) == []


def test_a_delivery_before_the_deadline_is_a_violation(ledger: Ledger) -> None:
    held = receive(ledger, 10, 1)
    ledger.change_requested(held, requested_s=11, timeout_s=5)
    ledger.change_acknowledged(held, requested_s=11, replied_s=11.1, timeout_s=5)
    receive(ledger, 15, 2)
    receive(ledger, 15.5, 3)
    early = [violation.split()[5] for violation in ledger.settle({"a"})]
    assert early == ["899", "1399"]


def test_a_receive_that_did_not_reach_the_server_explains_no_count(ledger: Ledger) -> None:
    with pytest.raises(Unanswered), ledger.receiving():
        raise Unreached
    with pytest.raises(Unanswered), ledger.receiving():
        raise Unanswered
    ledger.send_requested(["b"])
    receive(ledger, 10, 3)
    receive(ledger, 10, 2, body="b")
    assert len(ledger.settle({"a", "b"})) == 2


def test_a_delivery_of_a_claimed_message_is_a_violation(ledger: Ledger) -> None:
    receive(ledger, 10, 1)
    claim = ledger.claimed("a", 2, requested_s=13, replied_s=14)
    receive(ledger, 13.5, 3)
    assert ledger.violations == []
    receive(ledger, 16, 4)
    ledger.change_requested(claim, requested_s=18, timeout_s=0)
    receive(ledger, 19, 5)
    ledger.claimed("a", 6, requested_s=17, replied_s=18)
    assert ledger.settle({"a"}).count("a was delivered while it was claimed") == 2


def test_a_dead_letter_too_early_or_too_late_is_a_violation(ledger: Ledger) -> None:
    ledger.send_requested(["b"])
    for number in range(4):
        receive(ledger, 10 + 10 * number, number + 1)
    assert ledger.check_dead_letters(["a"], receives_max=4) == []
    assert ledger.check_dead_letters(["b"], receives_max=3) == [
        "a was not dead-lettered",
        "b was dead-lettered after 0 receives",
    ]


@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (2,)], ids=["repeated", "skipped", "too-high"])
def test_a_wrong_receive_count_is_a_violation(ledger: Ledger, counts: tuple[int, ...]) -> None:
    for number, count in enumerate(counts):
        receive(ledger, 10 + 10 * number, count)
    assert len(ledger.settle({"a"})) == 1


def test_a_message_that_was_never_sent_or_is_lost_is_a_violation(ledger: Ledger) -> None:
    receive(ledger, 10, 1, body="ghost")
    unsent, lost = ledger.settle(set())
    assert "never sent" in unsent
    assert "lost" in lost


def test_a_correct_order_has_no_violation() -> None:
    order = GroupOrder()
    order.delivered([("a", 0), ("b", 0), ("a", 1)])
    order.delivered([("a", 0), ("a", 1)])
    order.delete_requested("a", 1)
    order.delivered([("a", 0)])
    order.delete_requested("a", 0)
    order.delete_requested("a", 0)
    order.delivered([("a", 2), ("a", 3)])
    order.delivered([("a", 2), ("a", 3)])
    assert order.violations == []


def test_a_message_before_an_undeleted_one_or_behind_a_later_one_is_a_violation() -> None:
    order = GroupOrder()
    order.delivered([("a", 0), ("b", 0)])
    order.delete_requested("b", 0)
    order.delivered([("a", 1)])
    assert order.violations == ["1 of a was delivered before 0"]
    order.delivered([("c", 1), ("c", 0)])
    assert len(order.violations) == 3


GIVEN = "import os, sys; print(os.getcwd(), dict(os.environ), sys.argv, sys.stdin.read()); sys.exit('complaint')"
ENDLESS = "import signal; print('begun', flush=True); signal.pause()"
PIPE = subprocess.PIPE


def test_a_fork_has_its_own_folder_environment_arguments_and_files(tmp_path: Path) -> None:
    words = [sys.executable, "-c", GIVEN, "an argument"]
    how = {"env": {"A": "b"}, "cwd": tmp_path, "stdin": subprocess.DEVNULL, "stdout": PIPE, "stderr": PIPE}
    done = run(words, text=True, timeout=60, **how)
    assert done.stdout == f"{tmp_path} {{'A': 'b'}} ['-c', 'an argument'] \n"
    assert (done.returncode, done.stderr) == (1, "complaint\n")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, -2)], ids=["kill", "interrupt"])
def test_a_signal_ends_one_fork_only(number: signal.Signals, status: int) -> None:
    words = [sys.executable, "-c", ENDLESS]
    with Forked(words, stdout=PIPE, stderr=PIPE) as first, Forked(words, stdout=PIPE) as second:
        for each in (first, second):
            assert each.stdout is not None
            assert each.stdout.readline() == b"begun\n"
        assert (first.poll(), second.poll()) == (None, None)
        first.send_signal(number)
        first.communicate(60)
        assert (first.returncode, second.poll()) == (status, None)
        second.kill()
        assert second.wait(60) == -9


def test_a_failed_test_ends_its_fork() -> None:
    """Also while a thread reads its output."""
    with pytest.raises(subprocess.TimeoutExpired), Forked([sys.executable, "-c", ENDLESS], stdout=PIPE) as process:
        process.communicate(0)
    assert process.returncode == -9


STEADY = Tenth(memory_bytes=50e6, files=40, cycle_p50_ms=2, cycle_p99_ms=10, cycles=100, restarts=0)


@pytest.mark.slow
def test_a_short_soak_has_no_violation(tmp_path: Path) -> None:
    seen: list[int] = []
    soak = Soak(tmp_path, seconds=10, seed=1, filled=100, warm_up_s=1.5)
    soaked = soak.run(lambda number, tenth: seen.append(number))
    assert soaked.violations == []
    assert seen == [*range(1, TENTHS + 1)]
    restarts = [tenth.restarts for tenth in soaked.tenths]
    assert sum(restarts[at - 1] for at in RESTARTED) == sum(restarts) >= 2  # by both signals
    assert soaked.tenths[0].cycles > 0 < soaked.tenths[-1].cycles
    assert all(tenth.memory_bytes > 1e6 and tenth.files > 10 for tenth in soaked.tenths)
    assert soaked.sent > soaked.deleted > 0 < soaked.dead
    assert all(load.ledger.totals()[0] > 0 for load in soak.loads)  # each queue is in use


@pytest.mark.parametrize(
    ("last", "violations", "expected"),
    [
        pytest.param(STEADY, [], [], id="steady"),
        pytest.param(STEADY._replace(memory_bytes=52.4e6, cycle_p99_ms=10.9, files=42), [], [], id="within"),
        pytest.param(STEADY._replace(memory_bytes=10e6, cycle_p99_ms=1, files=4), [], [], id="less"),
        pytest.param(STEADY._replace(memory_bytes=53e6), [], ["memory grew by 6.0%"], id="memory"),
        pytest.param(
            STEADY._replace(cycle_p99_ms=11.2), [], ["99th percentile of the cycles grew by 12.0%"], id="latency"
        ),
        pytest.param(STEADY._replace(files=43), [], ["3 more descriptors"], id="descriptors"),
        pytest.param(STEADY, ["a is lost", "b is lost"], ["2 violations, the first: a is lost"], id="lost"),
    ],
)
def test_a_soak_fails_by_its_growth_or_violations(last: Tenth, violations: list[str], expected: list[str]) -> None:
    soaked = Soaked([STEADY, *[STEADY._replace(memory_bytes=9e9)] * 8, last], violations, 1, 1, 1, 1)
    found = failures(soaked)
    assert len(found) == len(expected)
    assert all(words in each for words, each in zip(expected, found, strict=True))


def test_a_soak_without_measurements_fails() -> None:
    assert "grew" in failures(Soaked([STEADY._replace(cycle_p99_ms=0), STEADY], [], 1, 1, 1, 1))[0]
