"""What the proofs rest on: the ledger finds what is wrong, and forks are processes like others."""

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
    ledger.send_asked(["a"])
    ledger.send_told(["a"])
    return ledger


def receive(ledger: Ledger, at_s: float, count: int, body: str = "a") -> Receipt:
    """Note a delivery asked for at `at_s` and told a tenth later, with a lease of 2 s."""
    return ledger.received(body, "handle", count, asked_s=at_s, told_s=at_s + 0.1, timeout_s=2)


def test_an_honest_run_has_no_violation(ledger: Ledger) -> None:
    receive(ledger, 10, 1)
    held = receive(ledger, 12, 2)
    ledger.change_asked(held, asked_s=12.5, timeout_s=0)
    ledger.change_told(held, asked_s=12.5, told_s=12.6, timeout_s=0)
    last = receive(ledger, 12.7, 3)
    ledger.delete_asked(last)
    ledger.delete_told(last, told_s=13)
    assert ledger.settle(set()) == []


def test_what_was_not_told_may_be_either(ledger: Ledger) -> None:
    ledger.send_asked(["b"])
    with pytest.raises(Unanswered), ledger.receiving():
        raise Unanswered
    held = receive(ledger, 10, 2)
    ledger.change_asked(held, asked_s=10.5, timeout_s=0)
    ledger.delete_asked(receive(ledger, 10.6, 3))
    assert ledger.settle(set()) == []
    assert ledger.settle({"a", "b"}) == []


def test_a_lost_message(ledger: Ledger) -> None:
    assert "lost" in ledger.settle(set())[0]


def test_a_message_that_comes_back(ledger: Ledger) -> None:
    held = receive(ledger, 10, 1)
    ledger.delete_asked(held)
    ledger.delete_told(held, told_s=11)
    assert "still there" in ledger.settle({"a"})[0]
    receive(ledger, 20, 2)
    assert "came back" in ledger.settle(set())[0]


def test_a_delete_with_a_receipt_that_may_be_old_proves_nothing(ledger: Ledger) -> None:
    held = receive(ledger, 10, 1)
    ledger.delete_asked(held)
    ledger.delete_told(held, told_s=12.5)
    receive(ledger, 20, 2)
    assert ledger.settle({"a"}) == []


def test_a_message_before_its_deadline(ledger: Ledger) -> None:
    held = receive(ledger, 10, 1)
    ledger.change_asked(held, asked_s=11, timeout_s=5)
    ledger.change_told(held, asked_s=11, told_s=11.1, timeout_s=5)
    receive(ledger, 15, 2)
    receive(ledger, 15.5, 3)
    early = [violation.split()[5] for violation in ledger.settle({"a"})]
    assert early == ["899", "1399"]


def test_a_receive_that_reached_nothing_explains_no_count(ledger: Ledger) -> None:
    with pytest.raises(Unanswered), ledger.receiving():
        raise Unreached
    with pytest.raises(Unanswered), ledger.receiving():
        raise Unanswered
    ledger.send_asked(["b"])
    receive(ledger, 10, 3)
    receive(ledger, 10, 2, body="b")
    assert len(ledger.settle({"a", "b"})) == 2


def test_a_message_that_is_claimed(ledger: Ledger) -> None:
    receive(ledger, 10, 1)
    claim = ledger.claimed("a", 2, asked_s=13, told_s=14)
    receive(ledger, 13.5, 3)
    assert ledger.violations == []
    receive(ledger, 16, 4)
    ledger.change_asked(claim, asked_s=18, timeout_s=0)
    receive(ledger, 19, 5)
    ledger.claimed("a", 6, asked_s=17, told_s=18)
    assert ledger.settle({"a"}).count("a was delivered while it was claimed") == 2


def test_a_message_that_dies_too_early_or_never(ledger: Ledger) -> None:
    ledger.send_asked(["b"])
    for number in range(4):
        receive(ledger, 10 + 10 * number, number + 1)
    assert ledger.died(["a"], receives_max=4) == []
    assert ledger.died(["b"], receives_max=3) == ["a did not die", "b died after 0 receives"]


@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (2,)], ids=["repeated", "skipped", "too-high"])
def test_a_wrong_count(ledger: Ledger, counts: tuple[int, ...]) -> None:
    for number, count in enumerate(counts):
        receive(ledger, 10 + 10 * number, count)
    assert len(ledger.settle({"a"})) == 1


def test_a_message_that_nobody_sent(ledger: Ledger) -> None:
    receive(ledger, 10, 1, body="ghost")
    assert "never sent" in ledger.settle({"a"})[0]


def test_an_honest_order_has_no_violation() -> None:
    order = GroupOrder()
    order.given([("a", 0), ("b", 0), ("a", 1)])
    order.given([("a", 0), ("a", 1)])
    order.delete_asked("a", 1)
    order.given([("a", 0)])
    order.delete_asked("a", 0)
    order.delete_asked("a", 0)
    order.given([("a", 2), ("a", 3)])
    order.given([("a", 2), ("a", 3)])
    assert order.violations == []


def test_a_message_that_comes_too_early() -> None:
    order = GroupOrder()
    order.given([("a", 0), ("b", 0)])
    order.delete_asked("b", 0)
    order.given([("a", 1)])
    assert order.violations == ["1 of a was given before 0"]


def test_a_message_that_comes_behind_a_later_one() -> None:
    order = GroupOrder()
    order.given([("a", 1), ("a", 0)])
    assert len(order.violations) == 2


# A fork is given what a process is that Python is started for, and its end is seen.


GIVEN = "import os, sys; print(os.getcwd(), dict(os.environ), sys.argv, sys.stdin.read()); sys.exit('complaint')"
ENDLESS = "import signal; print('begun', flush=True); signal.pause()"
PIPE = subprocess.PIPE


def test_it_has_its_folder_environment_arguments_and_files(tmp_path: Path) -> None:
    words = [sys.executable, "-c", GIVEN, "an argument"]
    how = {"env": {"A": "b"}, "cwd": tmp_path, "stdin": subprocess.DEVNULL, "stdout": PIPE, "stderr": PIPE}
    done = run(words, text=True, timeout=60, **how)
    assert done.stdout == f"{tmp_path} {{'A': 'b'}} ['-c', 'an argument'] \n"
    assert (done.returncode, done.stderr) == (1, "complaint\n")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, -2)], ids=["kill", "interrupt"])
def test_a_signal_ends_it(number: signal.Signals, status: int) -> None:
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


# The soak, for seconds instead of hours: it restarts, keeps the books and shows ten tenths; what drifts fails.


STEADY = Tenth(memory_bytes=50e6, files=40, way_p50_ms=2, way_p99_ms=10, ways=100, restarts=0)


@pytest.mark.slow
def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    seen: list[int] = []
    soak = Soak(tmp_path, seconds=10, seed=1, filled=100, warm_up_s=1.5)
    soaked = soak.run(lambda number, tenth: seen.append(number))
    assert soaked.violations == []
    assert seen == [*range(1, TENTHS + 1)]
    restarts = [tenth.restarts for tenth in soaked.tenths]
    assert sum(restarts[at - 1] for at in RESTARTED) == sum(restarts) >= 2  # both ways
    assert soaked.tenths[0].ways > 0 < soaked.tenths[-1].ways
    assert all(tenth.memory_bytes > 1e6 and tenth.files > 10 for tenth in soaked.tenths)
    assert soaked.sent > soaked.deleted > 0 < soaked.dead
    assert all(load.ledger.told()[0] > 0 for load in soak.loads)  # each queue was in use


@pytest.mark.parametrize(
    ("last", "violations", "said"),
    [
        pytest.param(STEADY, [], [], id="steady"),
        pytest.param(STEADY._replace(memory_bytes=52.4e6, way_p99_ms=10.9, files=42), [], [], id="within"),
        pytest.param(STEADY._replace(memory_bytes=10e6, way_p99_ms=1, files=4), [], [], id="less"),
        pytest.param(STEADY._replace(memory_bytes=53e6), [], ["memory grew by 6.0%"], id="memory"),
        pytest.param(STEADY._replace(way_p99_ms=11.2), [], ["99th percentile of the ways grew by 12.0%"], id="latency"),
        pytest.param(STEADY._replace(files=43), [], ["3 more descriptors"], id="descriptors"),
        pytest.param(STEADY, ["a is lost", "b is lost"], ["2 violations, the first: a is lost"], id="lost"),
    ],
)
def test_what_grows_fails(last: Tenth, violations: list[str], said: list[str]) -> None:
    soaked = Soaked([STEADY, *[STEADY._replace(memory_bytes=9e9)] * 8, last], violations, 1, 1, 1, 1)
    found = failures(soaked)
    assert len(found) == len(said)
    assert all(words in each for words, each in zip(said, found, strict=True))


def test_a_start_without_a_measured_way_fails() -> None:
    assert "grew" in failures(Soaked([STEADY._replace(way_p99_ms=0), STEADY], [], 1, 1, 1, 1))[0]
