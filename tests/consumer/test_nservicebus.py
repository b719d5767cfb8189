"""NServiceBus's formula, to the tick.

``renewal-vectors.json`` was computed from the source of Particular/NServiceBus.AmazonSQS at commit 6e380847
(``Renewal.CalculateRenewalTime`` and the loop around it); its numbers are exact to 100 ns. The rows that were taken
from that project's own unit tests are played here through the table and the renewer.
"""

import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.simulation import GONE, INVALID, Answer, Play, message
from veilmq.client.messages import ClientError
from veilmq.consumer import LeaseState
from veilmq.consumer.renewal_policies import LeaseTerms, Measured, NServiceBusPolicy

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "renewal-vectors.json").read_text(encoding="utf-8"))
TIMELINES = {timeline["name"]: timeline for timeline in VECTORS["timelines"]}


@pytest.mark.parametrize("vector", VECTORS["renew_after"], ids=lambda vector: str(vector["remaining"]))
def test_when_to_renew(vector: dict[str, float]) -> None:
    terms = LeaseTerms(timeout_s=30, expires_at_s=vector["remaining"])
    assert NServiceBusPolicy().renew_at_s(terms, 0) == vector["renew_after"]


@pytest.mark.parametrize("vector", VECTORS["extension"], ids=lambda vector: f"{vector['remaining']} of {vector['vt']}")
def test_for_how_long_to_renew(vector: dict[str, Any]) -> None:
    terms = LeaseTerms(timeout_s=vector["vt"], expires_at_s=vector["remaining"])
    assert NServiceBusPolicy().extension_s(terms, 0) == vector["extension"]


def test_the_vectors_are_all_there() -> None:
    assert [len(VECTORS[part]) for part in ("renew_after", "extension", "timelines")] == [27, 22, 9]


@pytest.mark.parametrize("name", TIMELINES)
def test_a_timeline_of_the_pure_functions(name: str) -> None:
    """Instants, what remains, what is asked for and the new end, exactly to 100 ns."""
    timeline = TIMELINES[name]
    policy = NServiceBusPolicy(max_auto_message_visibility_renewal_duration=timeline["max"])
    now_s, expires_at_s, renewals = 0.0, float(timeline["first_expiry"]), []
    while True:
        terms = LeaseTerms(timeout_s=timeline["vt"], expires_at_s=expires_at_s, started_at_s=0.0)
        now_s = policy.renew_at_s(terms, now_s) + timeline["late"]
        if policy.is_over(terms, now_s):
            break
        remaining_s, for_s = expires_at_s - now_s, policy.extension_s(terms, now_s)
        expires_at_s = now_s + for_s
        renewals.append(
            {
                "at": round(now_s, 7),
                "remaining": round(remaining_s, 7),
                "extension": for_s,
                "new_expiry": round(expires_at_s, 7),
            }
        )
    assert renewals == timeline["renewals"]


@pytest.mark.parametrize("name", TIMELINES)
def test_a_timeline_of_the_renewer(name: str) -> None:
    """The table and the renewer do what the pure functions say, alone, then with one lease after another beside it."""
    timeline = TIMELINES[name]
    play = Play(NServiceBusPolicy(max_auto_message_visibility_renewal_duration=timeline["max"]))
    play.take(timeout_s=timeline["vt"], received_at_s=timeline["first_expiry"] - timeline["vt"])
    play.until(timeline["max"] + 100, late_s=timeline["late"])
    assert play.queue.renewals == [(renewal["at"], renewal["extension"]) for renewal in timeline["renewals"]]


def test_twenty_overlapping_leases_are_twenty_single_ones() -> None:
    """Each of twenty leases, begun 1.7 s apart, is renewed when and for as long as it would be alone."""
    play = Play(NServiceBusPolicy())
    begins = [number * 1.7 for number in range(20)]
    for number, at_s in enumerate(begins):
        play.until(at_s)
        play.take(f"r{number}", timeout_s=30)
    play.until(400)
    for number, at_s in enumerate(begins):
        mine = [(call.at_s, for_s) for call in play.queue.calls for r, for_s in call.entries if r == f"r{number}"]
        alone = [(at_s + renewal["at"], renewal["extension"]) for renewal in TIMELINES["doc_V30_max300"]["renewals"]]
        for (at, for_s), (at_alone, for_s_alone) in zip(mine, alone, strict=True):
            # 1.7 is no binary fraction: an instant may miss the whole second by a rounding, never by a tick.
            assert at == pytest.approx(at_alone, abs=1e-7)
            assert for_s == for_s_alone


def test_leases_due_together_share_a_call_and_others_stay_out() -> None:
    """A batch holds what is due, ten at the most, and nothing that is due later."""
    play = Play(NServiceBusPolicy())
    play.take(*[f"r{number}" for number in range(12)], timeout_s=30)
    play.until(1)
    play.take("later", timeout_s=30)
    play.until(20.5)
    assert [len(call.entries) for call in play.queue.calls] == [10, 2]
    play.until(21)
    assert [len(call.entries) for call in play.queue.calls] == [10, 2, 1]


class TestOfNServiceBus:
    """What that project's own unit tests say."""

    def test_renews_until_cancelled(self) -> None:
        """V = 10, end 10: after 5 s for 15, 11 s later for 14; then the handler ends."""
        play = Play(NServiceBusPolicy())
        (lease,) = play.take(timeout_s=10)
        play.jump(5)
        assert lease.expires_at_s == 20
        assert play.table.next_due_s() == 12.5
        play.jump(16)
        assert lease.expires_at_s == 30
        play.table.settle(lease)
        play.until(100)
        assert play.queue.renewals == [(5, 15), (16, 14)]
        assert play.news == []

    @pytest.mark.parametrize(
        ("received_at_s", "ended_at_s", "asked"),
        [
            pytest.param(20, 18, [], id="does not renew before it is time"),
            pytest.param(-12, 0.3, [(0, 12)], id="renews at once what has expired, once"),
            pytest.param(150, 150, [(150, 20)], id="renews a long first lease ten seconds before its end"),
            pytest.param(0, 0, [], id="renews nothing that ended before it began"),
        ],
    )
    def test_a_lease_of_ten_seconds(
        self, received_at_s: float, ended_at_s: float, asked: list[tuple[float, int]]
    ) -> None:
        """It counts from its receive, and its handler ends at another instant."""
        play = Play(NServiceBusPolicy())
        (lease,) = play.take(timeout_s=10, received_at_s=received_at_s)
        play.until(ended_at_s)
        play.table.settle(lease)
        play.until(200)
        assert play.queue.renewals == asked

    @pytest.mark.parametrize("error", [GONE, INVALID], ids=["gone", "invalid"])
    def test_a_failed_renewal_tells_the_handler(self, error: ClientError) -> None:
        """V = 10, and the message is gone: one call, and the lease is lost."""
        play = Play(NServiceBusPolicy())
        play.take(timeout_s=10)
        play.queue.script = [Answer(entries={"r": error})]
        play.until(100)
        assert play.queue.renewals == [(5, 15)]
        assert play.news == [(5, "r", LeaseState.LOST)]

    def test_a_clock_that_leaps(self) -> None:
        """V = 30, a handler of 60 s, looked at after 16, 32 and 64 s: one or two calls."""
        play = Play(NServiceBusPolicy())
        (lease,) = play.take(timeout_s=30)
        for at_s in (16, 32):
            play.jump(at_s)
        play.clock.set(60)
        play.table.settle(lease)
        play.jump(64)
        assert play.queue.renewals == [(32, 32)]

    def test_a_renewal_duration_of_zero_is_off(self) -> None:
        play = Play(NServiceBusPolicy(max_auto_message_visibility_renewal_duration=0))
        play.take(timeout_s=30, received_at_s=-31)
        play.until(100)
        assert play.queue.renewals == []

    def test_what_was_lost_is_not_released(self) -> None:
        """The receipt is invalid when the message expires: one call, the handler ends, and nothing is made visible."""
        play = Play(NServiceBusPolicy())
        (lease,) = play.take(timeout_s=30, received_at_s=-30)
        play.queue.script = [Answer(entries={"r": INVALID})]
        play.until(1)
        assert play.queue.renewals == [(0, 30)]
        assert play.news[-1:] == [(0, "r", LeaseState.LOST)]
        assert play.table.withdraw(lease).result(0) is False


def test_the_maximum_ends_renewals_and_not_the_handler() -> None:
    """The last renewal is at 290 s; from 330 s on the lease is in doubt, which is no loss, in FIFO queues either."""
    for fifo in (False, True):
        play = Play(NServiceBusPolicy(), fifo=fifo)
        play.take(timeout_s=30)
        play.until(1_000)
        assert play.queue.renewals[-1:] == [(290, 40)]
        assert play.news == [(330, "r", LeaseState.SUSPECT)]


def test_the_maximum_counts_from_the_begin_of_processing() -> None:
    """A message that waited 100 s for its turn is renewed until 400 s."""
    play = Play(NServiceBusPolicy())
    (lease,) = play.table.take(play.subscription, [message("r")], requested_at_s=0, answered_at_s=0, timeout_s=30)
    play.until(100)
    play.table.start(lease)
    play.until(1_000)
    assert play.queue.renewals[-1][0] == 380


def test_two_seconds_late_asks_for_32() -> None:
    """The seed's example: the process stood still until 2 s past the end."""
    play = Play(NServiceBusPolicy())
    (lease,) = play.take(timeout_s=30)
    play.jump(32)
    assert play.queue.renewals == [(32, 32)]
    assert lease.state is LeaseState.SUSPECT


@pytest.mark.parametrize(
    "option",
    ["max_auto_message_visibility_renewal_duration", "message_visibility_timeout"],
    ids=["duration", "timeout"],
)
@pytest.mark.parametrize("value", [-1, -0.5, 43_200.5, math.nan, timedelta(hours=12, seconds=1), "13h"], ids=str)
def test_durations_beyond_twelve_hours_are_refused(option: str, value: float | timedelta | str) -> None:
    with pytest.raises(ValueError, match=f"^{option}(: .* it is negative| is .* must be from 0 to 43200)"):
        NServiceBusPolicy(**{option: value})


def test_the_options_and_their_defaults() -> None:
    """Five minutes, and the queue's own timeout; a timeout that is set is sent with every receive."""
    assert NServiceBusPolicy().renewal_s == 300
    assert NServiceBusPolicy().receive_timeout_s(Measured()) is None
    assert NServiceBusPolicy(message_visibility_timeout=timedelta(minutes=2)).receive_timeout_s(Measured()) == 120
    assert NServiceBusPolicy(max_auto_message_visibility_renewal_duration=timedelta(hours=12)).renewal_s == 43_200
