"""What can be tuned in the engine on PostgreSQL."""

from dataclasses import dataclass

from veilmq.core import limits
from veilmq.core.ports import MaySend
from veilmq.core.routing import ATTRIBUTE_DEFAULT
from veilmq.store.postgres.durability import Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """Where ``migrates`` is true, a node upgrades the schema when it starts, unless older ones could not go on.

    ``connections`` is how many a node keeps to its server, beside those that listen and sweep.

    With the durability ``STANDARD`` it keeps as many again, for what may be undone. A command waits ``acquire_s`` for
    one of them, and a statement may take ``statement_s``; both are then told to try again. ``silence_s`` later a server
    that has not said even that is given up.

    ``coalesced_max`` bounds the messages that travel together in one statement. The quotas are of queues that set none
    of their own; a queue rests for ``purge_pause_s`` after a purge, and the name of a deleted one for
    ``queue_name_pause_s`` (0: not at all). A queue's settings are looked up again after ``fresh_s`` even if no node
    told of a change. The janitor deletes up to ``sweep_rows`` rows at once.
    Of one queue up to ``claimed_max`` messages may be claimed; one transaction binds, deletes or gives back up to
    ``claim_slice_rows`` of them.
    ``may_send`` decides whether move tasks go on (``None``: they do).
    ``event_log`` is what queues log that do not say it themselves, ``routing_attribute`` the message attribute whose
    text events have as their key, ``events_waiting_max`` how many events may wait to be exported.
    Quotas of in-flight messages up to ``in_flight_counted_max`` are counted at each receive, larger ones now and then.

    Nodes wake each other's long polls by notices where ``listens`` is true. Every ``round_s`` a node looks by itself at
    what is waited for there, five times as often where no notices arrive.
    """

    migrates: bool = True
    connections: int = 8
    durability: Durability = Durability.STRICT
    acquire_s: float = 5.0
    statement_s: float = 30.0
    silence_s: float = 5.0
    coalesced_max: int = 100
    in_flight_max: int = limits.IN_FLIGHT.default
    fifo_in_flight_max: int = limits.FIFO_IN_FLIGHT.default
    purge_pause_s: int = limits.PURGE_PAUSE_S
    queue_name_pause_s: int = limits.QUEUE_NAME_PAUSE_S
    fresh_s: float = 5.0
    sweep_rows: int = 1_000
    in_flight_counted_max: int = 1_000
    may_send: MaySend | None = None
    event_log: str = "off"
    routing_attribute: str = ATTRIBUTE_DEFAULT
    events_waiting_max: int = limits.EVENTS_WAITING_MAX
    claimed_max: int = limits.CLAIMED.default
    claim_slice_rows: int = 1_000
    listens: bool = True
    round_s: float = 1.0
