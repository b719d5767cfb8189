"""Browsing the queues of an account, however many: a page of them by any order, with what is in them and how it moves.

What tells of movement, rates and what was visible lately, needs somebody who has looked before. So a server answers,
not an engine (``server/queue_statistics.py``).
"""

import enum
from collections.abc import Callable

import msgspec

from veilmq.core.commands import Command
from veilmq.core.results import QueueView

BROWSED_MAX = 200
"""How many queues a page may have."""


class QueueOrder(enum.Enum):
    """By what queues are sorted; equals by name."""

    NAME = "name"
    VISIBLE = "visible"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"
    OLDEST = "oldest"
    SENT = "sent"
    RECEIVED = "received"
    DELETED = "deleted"


class BrowseQueues(Command, frozen=True, kw_only=True):
    """Show up to ``count`` queues of ``account``, from the one with the index ``first`` on. Answers ``BrowsedQueues``.

    Only those that have ``search`` in their name, in upper or lower case; or only those of ``names`` (without the
    account), at most ``BROWSED_MAX``. ``OLDEST`` sorts by the age of the oldest message, ``SENT`` and its kin by what
    happened a second lately. Without ``history`` none is told. Of what ``may_see`` denies no more than the name is
    told; ``None`` denies nothing.

    The queues that are shown are counted for it. Which ones those are is decided by what was counted last, in any order
    but that of names. Named ones, about which whoever watches asks again and again, are counted as often as there is
    time for.
    """

    account: str
    search: str = ""
    names: tuple[str, ...] | None = None
    order: QueueOrder = QueueOrder.NAME
    descending: bool = False
    first: int = 0
    count: int = 50
    history: bool = True
    may_see: Callable[[QueueView], bool] | None = None


class BrowsedQueue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A queue as a listing shows it: its name without the account; nothing else is known where that is denied.

    ``sent``, ``received`` and ``deleted`` are the totals of ``QueueCounts``. What is per second is taken over some
    seconds before ``counted_at_ms``, ``None`` where nobody had looked. The ``history`` is what was visible when
    somebody looked, as pairs of an instant (ms) and a number, oldest first.
    """

    name: str
    fifo: bool | None = None
    dead_letter_queue: str | None = None
    visible: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    oldest_sent_at_ms: int | None = None
    sent: int | None = None
    received: int | None = None
    deleted: int | None = None
    sent_per_s: float | None = None
    received_per_s: float | None = None
    deleted_per_s: float | None = None
    counted_at_ms: int | None = None
    history: list[tuple[int, int]] = []


class BrowsedQueues(msgspec.Struct, frozen=True, kw_only=True):
    """A page of queues; ``in_all`` match, and ``counted`` of those have been counted yet, whenever that was."""

    queues: list[BrowsedQueue]
    in_all: int
    counted: int
