"""What a forwarder has done so far, counted by all of its threads."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from veilmq.client.messages import ClientError
from veilmq.forwarding.parcels import HELD, Outcome, Parcel

NO_ANSWER = "no answer"
"""The reason of a message of which nobody knows whether it was forwarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Messages ``forwarded``, by queue, and attempts after which a message ``stayed`` in the intake, by reason.

    ``routed`` has what was forwarded by queue and rule, ``None`` where none held. ``received`` counts all that came
    from the intake, ``again`` those of them that had been received before.

    One that stayed is received again when its timeout ends, and may so be counted more than once. ``gone`` are those
    that were in the intake no more: a repeated request finds what its first answer, which was lost, told.
    """

    forwarded: Counter[str] = field(default_factory=Counter)
    stayed: Counter[str] = field(default_factory=Counter)
    routed: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    gone: int = 0
    received: int = 0
    again: int = 0

    @property
    def messages(self) -> int:
        """Return how many were forwarded."""
        return self.forwarded.total()


class Tally:
    """Counts; threads share it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._forwarded: Counter[str] = Counter()
        self._stayed: Counter[str] = Counter()
        self._routed: Counter[tuple[str, str | None]] = Counter()
        self._gone = self._received = self._again = 0

    def add(self, parcels: Sequence[Parcel], outcomes: Sequence[Outcome]) -> None:
        """Count what became of some messages."""
        with self._lock:
            self._received += len(parcels)
            self._again += sum(parcel.message.receive_count > 1 for parcel in parcels)
            for parcel, outcome in zip(parcels, outcomes, strict=True):
                if outcome is None:
                    self._forwarded[parcel.target] += 1
                    self._routed[parcel.target, parcel.rule] += 1
                elif is_gone(outcome):
                    self._gone += 1
                else:
                    self._stayed[reason_of(outcome)] += 1

    def totals(self) -> Totals:
        """Return the numbers as they are now."""
        with self._lock:
            return Totals(
                forwarded=self._forwarded.copy(),
                stayed=self._stayed.copy(),
                routed=self._routed.copy(),
                gone=self._gone,
                received=self._received,
                again=self._again,
            )


def is_gone(outcome: Outcome) -> bool:
    """Tell whether the message was in the intake no more."""
    return isinstance(outcome, ClientError) and outcome.fields.get("state") == "gone"


def is_held(outcome: Outcome) -> bool:
    """Tell whether the message was not tried, for the sake of order."""
    return isinstance(outcome, ClientError) and outcome.code == HELD.code


def reason_of(outcome: Outcome) -> str:
    """Return in a word or two why a message stayed."""
    return outcome.code if isinstance(outcome, ClientError) else NO_ANSWER
