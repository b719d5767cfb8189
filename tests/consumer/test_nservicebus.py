"""The renewal policy of NServiceBus, to the tick.

``renewal-vectors.json`` was computed from the source of Particular/NServiceBus.AmazonSQS at commit 6e380847
(``Renewal.CalculateRenewalTime`` and the loop around it); its numbers are exact to 100 ns. Cases of that project's own
unit tests run here through the lease table and the renewer.
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
def test_a_lease_is_renewed_at_the_time_of_the_vector(vector: dict[str, float]) -> None:
    terms = LeaseTerms(timeout_s=30, expires_at_s=vector["remaining"])
    assert NServiceBusPolicy().renew_at_s(terms, 0) == vector["renew_after"]


@pytest.mark.parametrize("vector", VECTORS["extension"], ids=lambda vector: f"{vector['remaining']} of {vector['vt']}")
def test_a_lease_is_renewed_for_the_duration_of_the_vector(vector: dict[str, Any]) -> None:
    terms = LeaseTerms(timeout_s=vector["vt"], expires_at_s=vector["remaining"])
    assert NServiceBusPolicy().extension_s(terms, 0) == vector["extension"]


def test_the_file_has_all_vectors() -> None:
    assert [len(VECTORS[part]) for part in ("renew_after", "extension", "timelines")] == [27, 22, 9]


@pytest.mark.parametrize("name", TIMELINES)
def test_the_renewer_follows_each_timeline(name: str) -> None:
    timeline = TIMELINES[name]
    play = Play(NServiceBusPolicy(max_auto_message_visibility_renewal_duration=timeline["max"]))
    play.take(timeout_s=timeline["vt"], received_at_s=timeline["first_expiry"] - timeline["vt"])
    play.until(timeline["max"] + 100, late_s=timeline["late"])
    assert play.queue.renewals == [(renewal["at"], renewal["extension"]) for renewal in timeline["renewals"]]


def test_overlapping_leases_are_renewed_as_single_ones() -> None:
    play = Play(NServiceBusPolicy())
    begins = [number * 1.7 for number in range(20)]
    for number, at_s in enumerate(begins):
        play.until(at_s)
        play.take(f"r{number}", timeout_s=30)
    play.until(400)
    for number, at_s in enumerate(begins):
        renewals = [(call.at_s, for_s) for call in play.queue.calls for r, for_s in call.entries if r == f"r{number}"]
        alone = [(at_s + renewal["at"], renewal["extension"]) for renewal in TIMELINES["doc_V30_max300"]["renewals"]]
        for (at, for_s), (at_alone, for_s_alone) in zip(renewals, alone, strict=True):
            # 1.7 is no binary fraction: a time may be off by a rounding error, never by a tick.
            assert at == pytest.approx(at_alone, abs=1e-7)
            assert for_s == for_s_alone


def test_leases_due_together_share_calls_of_at_most_ten() -> None:
    play = Play(NServiceBusPolicy())
    play.take(*[f"r{number}" for number in range(12)], timeout_s=30)
    play.until(1)
    play.take("later", timeout_s=30)
    play.until(20.5)
    assert [len(call.entries) for call in play.queue.calls] == [10, 2]
    play.until(21)
    assert [len(call.entries) for call in play.queue.calls] == [10, 2, 1]


class TestOfNServiceBus:
    """The unit tests of that project."""

    def test_a_lease_is_renewed_until_its_handler_ends(self) -> None:
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
        ("received_at_s", "ended_at_s", "renewals"),
        [
            pytest.param(20, 18, [], id="does not renew before it is time"),
            pytest.param(-12, 0.3, [(0, 12)], id="renews at once what has expired, once"),
            pytest.param(150, 150, [(150, 20)], id="renews a long first lease ten seconds before its end"),
            pytest.param(0, 0, [], id="renews nothing that ended before it began"),
        ],
    )
    def test_a_lease_of_ten_seconds_is_renewed_in_time(
        self, received_at_s: float, ended_at_s: float, renewals: list[tuple[float, int]]
    ) -> None:
        play = Play(NServiceBusPolicy())
        (lease,) = play.take(timeout_s=10, received_at_s=received_at_s)
        play.until(ended_at_s)
        play.table.settle(lease)
        play.until(200)
        assert play.queue.renewals == renewals

    @pytest.mark.parametrize("error", [GONE, INVALID], ids=["gone", "invalid"])
    def test_a_failed_renewal_loses_the_lease(self, error: ClientError) -> None:
        play = Play(NServiceBusPolicy())
        play.take(timeout_s=10)
        play.queue.script = [Answer(entries={"r": error})]
        play.until(100)
        assert play.queue.renewals == [(5, 15)]
        assert play.news == [(5, "r", LeaseState.LOST)]

    def test_a_renewer_that_runs_late_renews_once(self) -> None:
        """A handler of 60 s; the renewer runs after 16, 32 and 64 s."""
        play = Play(NServiceBusPolicy())
        (lease,) = play.take(timeout_s=30)
        for at_s in (16, 32):
            play.jump(at_s)
        play.clock.set(60)
        play.table.settle(lease)
        play.jump(64)
        assert play.queue.renewals == [(32, 32)]

    def test_a_renewal_duration_of_zero_disables_renewals(self) -> None:
        play = Play(NServiceBusPolicy(max_auto_message_visibility_renewal_duration=0))
        play.take(timeout_s=30, received_at_s=-31)
        play.until(100)
        assert play.queue.renewals == []

    def test_a_lost_lease_is_not_released(self) -> None:
        play = Play(NServiceBusPolicy())
        (lease,) = play.take(timeout_s=30, received_at_s=-30)
        play.queue.script = [Answer(entries={"r": INVALID})]
        play.until(1)
        assert play.queue.renewals == [(0, 30)]
        assert play.news[-1:] == [(0, "r", LeaseState.LOST)]
        assert play.table.withdraw(lease).result(0) is False


def test_the_maximum_ends_renewals_but_not_the_handler() -> None:
    """The last renewal is at 290 s; from 330 s on the lease is in doubt, also in FIFO queues."""
    for fifo in (False, True):
        play = Play(NServiceBusPolicy(), fifo=fifo)
        play.take(timeout_s=30)
        play.until(1_000)
        assert play.queue.renewals[-1:] == [(290, 40)]
        assert play.news == [(330, "r", LeaseState.SUSPECT)]


def test_the_maximum_counts_from_the_start_of_the_handler() -> None:
    play = Play(NServiceBusPolicy())
    (lease,) = play.table.take(play.subscription, [message("r")], requested_at_s=0, answered_at_s=0, timeout_s=30)
    play.until(100)
    play.table.start(lease)
    play.until(1_000)
    assert play.queue.renewals[-1][0] == 380


@pytest.mark.parametrize(
    "option",
    ["max_auto_message_visibility_renewal_duration", "message_visibility_timeout"],
    ids=["duration", "timeout"],
)
@pytest.mark.parametrize("value", [-1, -0.5, 43_200.5, math.nan, timedelta(hours=12, seconds=1), "13h"], ids=str)
def test_durations_beyond_twelve_hours_are_refused(option: str, value: float | timedelta | str) -> None:
    with pytest.raises(ValueError, match=f"^{option}(: .* it is negative| is .* must be from 0 to 43200)"):
        NServiceBusPolicy(**{option: value})


def test_the_options_have_the_defaults_of_nservicebus() -> None:
    assert NServiceBusPolicy().renewal_s == 300
    assert NServiceBusPolicy().receive_timeout_s(Measured()) is None
    assert NServiceBusPolicy(message_visibility_timeout=timedelta(minutes=2)).receive_timeout_s(Measured()) == 120
    assert NServiceBusPolicy(max_auto_message_visibility_renewal_duration=timedelta(hours=12)).renewal_s == 43_200
