"""The cost and the losses of renewal policies, for a busy consumer over a day of virtual time.

`make prove-leases` simulates 24 hours with 1,000 messages in work, and prints the table in
docs/decisions/0013-leases.md.
"""

import os
import sys
import time
from collections.abc import Callable

import pytest

from tests.clients.program import Program
from tests.consumer.simulation import (
    FAULT_PLANS,
    QUIET,
    REFUSED,
    STALLED,
    SWALLOWED,
    FaultPlan,
    Outcome,
    Play,
    Simulation,
)
from tests.consumer.simulation import calls_of_nservicebus as calls_of
from tests.tidy.tree import SRC
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.consumer import Adaptive
from veilmq.consumer.renewal_policies import Fixed, Measured, NServiceBusPolicy, RenewalPolicy
from veilmq.testing import RunningServer

WHOLE = os.environ.get("PROVE") == "whole"
IN_WORK = 1_000 if WHOLE else 150
HOURS = 24.0 if WHOLE else 4.0
RARE = 0.003  # share of messages that take long, where most take a second or two


class Ageless(Adaptive):
    """``Adaptive`` without lengthening the lease by the age of the message, as first proposed."""

    def length_s(self, measured: Measured, *, age_s: float = 0.0) -> int:
        return super().length_s(measured)


CANDIDATES: dict[str, Callable[[], RenewalPolicy]] = {
    "NServiceBus, V = 30": lambda: NServiceBusPolicy(max_auto_message_visibility_renewal_duration=43_200),
    "fixed 30 s, every 20 s": lambda: Fixed(30, 20),
    "fixed 120 s, every 60 s": lambda: Fixed(120, 60),
    "as proposed (guard by latency alone)": lambda: Ageless(guard_share=0),
    "and by age": lambda: Adaptive(guard_share=0),
    "by age, guard 1/6": lambda: Adaptive(guard_share=1 / 6),
    "by age, guard 1/3": lambda: Adaptive(guard_share=1 / 3),
    "by age, guard 1/2": lambda: Adaptive(guard_share=1 / 2),
    "by age, guard 1/3, 60 to 300 s": lambda: Adaptive(guard_share=1 / 3, shortest_s=60),
    "by age, guard 1/3, 30 to 120 s": lambda: Adaptive(guard_share=1 / 3, longest_s=120),
    "by age, guard 1/3, 30 to 600 s": lambda: Adaptive(guard_share=1 / 3, longest_s=600),
}


def test_a_day_without_faults_has_no_duplicate_and_few_calls() -> None:
    """There are at most an eighth of the calls of NServiceBus."""
    outcome = Simulation(Adaptive(), in_work=IN_WORK, hours=HOURS).run()
    report("a day without faults", outcome)
    assert outcome.messages > IN_WORK
    assert outcome.duplicates == 0
    assert outcome.share <= 1 / 8
    assert max(outcome.hidden_s) <= Adaptive().longest_s


def test_leases_that_grow_with_age_save_a_third_of_the_calls() -> None:
    in_work, hours = (200, HOURS / 8) if WHOLE else (40, 0.25)
    ours = Simulation(Adaptive(), in_work=in_work, hours=hours, long_share=RARE).run()
    ageless = Simulation(Ageless(), in_work=in_work, hours=hours, long_share=RARE).run()
    report("quick work, rarely long", ours)
    report("the same, if age did not count", ageless)
    assert ours.duplicates == 0
    assert ours.calls < ageless.calls * 2 / 3


@pytest.mark.parametrize("plan", [SWALLOWED, REFUSED, STALLED], ids=lambda plan: plan.name)
def test_a_guard_of_a_third_of_the_lease_survives_faults(plan: FaultPlan) -> None:
    """A guard based on latency alone does not."""
    ours = Simulation(Adaptive(), in_work=IN_WORK, hours=HOURS, faults=plan).run()
    theirs = Simulation(Ageless(guard_share=0), in_work=IN_WORK, hours=HOURS, faults=plan).run()
    report(plan.name, ours)
    assert ours.duplicates <= ours.messages / 1_000
    assert theirs.duplicates > 0


@pytest.mark.parametrize("held_s", [1, 19, 20.5, 49, 51, 333, 4_000])
def test_the_calls_of_nservicebus_are_calculated_correctly(held_s: float) -> None:
    play = Play(NServiceBusPolicy(max_auto_message_visibility_renewal_duration=43_200))
    play.take(timeout_s=30)
    play.until(held_s)
    assert len(play.queue.calls) == calls_of(held_s)


@pytest.mark.skipif(not WHOLE, reason="takes minutes: make prove-leases")
def test_the_candidate_policies() -> None:
    """Print a comparison, in which the default must have no duplicate without faults."""
    plans = [plan.name for plan in FAULT_PLANS]
    row("policy", "calls", "of NServiceBus's", "hidden after a crash: mean", "most", *plans, "calls, rarely long")
    row(*["---"] * (len(plans) + 6))
    for name, policy in CANDIDATES.items():
        runs = [Simulation(policy(), in_work=200, hours=8, faults=plan).run() for plan in FAULT_PLANS]
        rare = Simulation(policy(), in_work=40, hours=2, long_share=RARE).run()
        quiet = runs[FAULT_PLANS.index(QUIET)]
        mean_s, most_s = sum(quiet.hidden_s) / len(quiet.hidden_s), max(quiet.hidden_s)
        duplicates = [f"{run.duplicates} of {run.messages}" for run in runs]
        hidden = (f"{mean_s:.0f} s", f"{most_s:.0f} s")
        row(name, f"{quiet.calls:,}", f"{quiet.share:.3f}", *hidden, *duplicates, rare.calls)
        assert quiet.duplicates == 0


def row(*cells: object) -> None:
    write("| " + " | ".join(map(str, cells)) + " |")


def report(name: str, outcome: Outcome) -> None:
    write(
        f"{name}: {outcome.messages:,} messages, {outcome.duplicates} duplicates, {outcome.calls:,} calls with "
        f"{outcome.entries:,} renewals, {outcome.share:.4f} of NServiceBus's {outcome.calls_of_nservicebus:,}"
    )


def write(line: str) -> None:
    sys.stdout.write(line + "\n")


# The worker uses the machine's clock; `make prove-stopped` stops it for forty seconds.
LEASE_S, STOPPED_S = (30, 40.0) if WHOLE else (3, 3.5)
THEIRS_S = 600


@pytest.mark.timeout(180)
def test_a_worker_stopped_for_longer_than_its_leases_keeps_only_untaken_messages() -> None:
    """It is stopped by SIGSTOP. Both messages are in doubt; the one taken by another consumer is lost."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        queue = server.queue("work", visibility_timeout_s=LEASE_S)
        client.send_batch("work", [NewMessage(body=body) for body in ("a", "b")])
        program = Program(
            [sys.executable, "-m", "tests.proofs.stopped_worker"],
            endpoint=server.endpoint,
            PYTHONPATH=str(SRC),
            LEASE_S=str(LEASE_S),
        )
        with program:
            assert {program.expect("event", "begun")["body"] for _ in "ab"} == {"a", "b"}
            with program.stopped():
                server.advance(seconds=STOPPED_S)
                time.sleep(STOPPED_S)
                (taken,) = client.receive("work", timeout_s=THEIRS_S, wait_s=0)
            reports = [program.next_report() for _ in range(5)]
            server.wait_until(lambda: len(queue.messages()) == 1)
        kept = {"a": "b", "b": "a"}[taken.body]
        events = {(report["event"], report["body"]) for report in reports if report is not None}
        lost = {("lost", taken.body), ("cancelled", taken.body)}
        assert events == {("suspect", "a"), ("suspect", "b"), *lost, ("done", kept)}
        (left,) = queue.in_flight
        assert left.body == taken.body
        assert left.receive_count == 2
        assert left.visible_at_ms == server.clock.now_ms() + THEIRS_S * 1_000
