"""A message on its way: what was received, where it goes, and what became of it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from veilmq.client.messages import ClientError, ReceivedMessage, Unreachable


class Parcel(NamedTuple):
    """A message in flight in the intake, the queue that it goes to, and by which rule."""

    message: ReceivedMessage
    target: str
    rule: str | None = None


Outcome = ClientError | Unreachable | None
"""Why a message has stayed in the intake, as far as one knows; ``None`` for one that was forwarded."""

HELD = ClientError("GroupHeld", "An earlier message of the group was not forwarded: that one goes first.", 409)
"""What keeps a message of a FIFO queue from being tried."""


class GroupOrder:
    """The groups of a FIFO intake that wait behind a message that stayed; of a standard queue, none."""

    def __init__(self, *, fifo: bool) -> None:
        """Hold none."""
        self._fifo = fifo
        self._held: set[str | None] = set()

    def holds(self, parcel: Parcel) -> bool:
        """Tell whether the message must not be tried."""
        return parcel.message.group in self._held

    def note(self, parcel: Parcel, outcome: Outcome) -> None:
        """Take note of what became of a message."""
        if self._fifo and outcome is not None:
            self._held.add(parcel.message.group)


def in_rounds(parcels: Sequence[Parcel]) -> Iterator[list[Parcel]]:
    """Yield the first message of each group, then the second of each, and so on."""
    rounds: list[list[Parcel]] = []
    count: dict[str | None, int] = {}
    for parcel in parcels:
        turn = count.get(parcel.message.group, 0)
        count[parcel.message.group] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(parcel)
    return iter(rounds)


def by_target(parcels: Iterable[Parcel]) -> dict[str, list[Parcel]]:
    """Return the messages for each queue, in their order."""
    groups: dict[str, list[Parcel]] = {}
    for parcel in parcels:
        groups.setdefault(parcel.target, []).append(parcel)
    return groups
