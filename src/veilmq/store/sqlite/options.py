"""What can be tuned in the store on SQLite; the defaults suit one machine."""

from dataclasses import dataclass

from veilmq.core import limits
from veilmq.core.ports import MaySend
from veilmq.core.routing import ATTRIBUTE_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The store's limits.

    Below ``free_space_reserve_bytes`` of free disk, sends are refused. ``vfs`` names an apsw VFS to open the database
    with, and ``database_pages_max`` bounds its size (SQLite's ``max_page_count``).

    ``claimed_max`` is how many messages of a queue may be claimed at once, ``claim_slice_rows`` bounds the work that a
    command does for claims.

    ``in_flight_max`` and ``fifo_in_flight_max`` are the quotas of queues that set none of their own; a queue rests for
    ``purge_pause_s`` after a purge, and the name of a deleted one for ``queue_name_pause_s`` (0: not at all).

    ``may_send`` decides whether move tasks go on (``None``: they do).

    ``event_log`` is what queues log that do not say it themselves, ``routing_attribute`` the message attribute whose
    text events have as their key, ``events_waiting_max`` how many events may wait to be exported.
    """

    free_space_reserve_bytes: int = limits.FREE_SPACE_RESERVE_BYTES
    in_flight_max: int = limits.IN_FLIGHT.default
    fifo_in_flight_max: int = limits.FIFO_IN_FLIGHT.default
    claimed_max: int = limits.CLAIMED.default
    claim_slice_rows: int = limits.CLAIM_SLICE_ROWS
    purge_pause_s: int = limits.PURGE_PAUSE_S
    queue_name_pause_s: int = limits.QUEUE_NAME_PAUSE_S
    may_send: MaySend | None = None
    event_log: str = "off"
    routing_attribute: str = ATTRIBUTE_DEFAULT
    events_waiting_max: int = limits.EVENTS_WAITING_MAX
    vfs: str | None = None
    database_pages_max: int | None = None
