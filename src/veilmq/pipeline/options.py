"""The options of the jobs, from which the command line derives its own (``cli/options.py``).

A field without a text is not an option of the command line. This module does not import Spark, so help does not need
it.
"""

from dataclasses import MISSING, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from veilmq.core import limits
from veilmq.core.limits import Range
from veilmq.core.settings import ROUTING_ATTRIBUTE_DEFAULT


@dataclass(frozen=True, slots=True)
class Between:
    """Numbers between two bounds, both exclusive."""

    low: float
    high: float

    def read(self, text: str) -> float:
        """Parse a number. Raises ``ValueError``, also for NaN and numbers outside the bounds."""
        if not self.low < (number := float(text)) < self.high:
            raise ValueError(text)
        return number

    def __str__(self) -> str:
        return f"a number, more than {self.low:g} and less than {self.high:g}"


def option(
    text: str, metavar: str = "", *, allowed: Range | Between | None = None, default: Any = MISSING, name: str = ""
) -> Any:
    """Declare a field as an option with a help ``text``; it is required if neither it nor ``allowed`` has a default.

    ``name`` is its name on the command line if that differs from the field's.
    """
    if default is MISSING and isinstance(allowed, Range):
        default = allowed.default
    metadata = {"text": text, "metavar": metavar, "allowed": allowed, "name": name}
    return field(default=default, metadata={key: value for key, value in metadata.items() if value})


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The Spark cluster of a job; by default this process, or the cluster of spark-submit."""

    master: str = option("Spark master, such as local[4] or spark://HOST:7077.", "URL", default="")
    remote: str = option("Spark Connect server, sc://HOST:15002.", "URL", default="")
    conf: tuple[str, ...] = option("Spark setting NAME=VALUE; may be repeated.", "NAME=VALUE", default=())
    verbose: bool = option("Print Spark's log.", default=False)

    @property
    def settings(self) -> dict[str, str | bool | int | float | None]:
        return {name: value for name, _, value in (each.partition("=") for each in self.conf)}


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a job claims messages from queues."""

    continuous: bool = option("Run until stopped, instead of until all visible messages are read.", default=False)
    batch_messages: int | None = option(
        "Maximum number of messages in a micro-batch.", allowed=limits.CLAIM_MESSAGES, default=None, name="--batch"
    )
    consumer: str = option("Consumer name of the streams.", "NAME")
    takeover: bool = option("Replace another such job of the same queues.", default=False)
    hold_s: int | None = option(
        "Seconds for which messages stay claimed while the job is down.", allowed=limits.CLAIM_HOLD_S, default=None
    )
    on_lost_claim: Literal["fail", "skip"] = option(
        "After a longer downtime: fail, or continue and log the messages delivered twice.", default="fail"
    )


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(ReadOptions):
    """Where and how to archive; ``checkpoint`` is below ``table`` by default."""

    table: str = option("Folder or URL of the archive; created if missing.", "DIR")
    checkpoint: str = option("Folder or URL of the checkpoints.", "DIR", default="")
    consumer: str = option("Consumer name of the streams.", "NAME", default="archive")
    compact_minutes: int = option(
        "Minutes between compactions of small files; 0: never.", allowed=limits.ARCHIVE_COMPACT_MINUTES
    )
    keep_h: int = option(
        "Hours until files that left the table are deleted.", allowed=limits.ARCHIVE_KEEP_H, name="--keep-hours"
    )
    expire_days: int = option(
        "Days after which messages leave the table; 0: never.", allowed=limits.ARCHIVE_EXPIRE_DAYS
    )


def _bad_rows() -> Any:
    text = "If a row cannot be sent: fail, leave it out, or write it to files in PATH."
    return option(text, "fail|skip|table=PATH", default="fail")


@dataclass(frozen=True, kw_only=True)
class ForwardOptions(ReadOptions):
    """How to forward; the checkpoint also stores the routing table."""

    checkpoint: str = option("Folder or URL of the checkpoint.", "DIR")
    consumer: str = option("Consumer name of the stream.", "NAME", default="route")
    bad_rows: str = _bad_rows()


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The messages of an archive that meet all conditions. A time without a zone is in UTC."""

    queues: tuple[str, ...] = option(
        "Only messages of this queue; may be repeated.", "QUEUE", default=(), name="--queue"
    )
    since: datetime | None = option("Only messages sent at this time (UTC) or later.", "TIME", default=None)
    until: datetime | None = option("Only messages sent before this time (UTC).", "TIME", default=None)
    where: str = option("Only messages that match this condition on the columns.", "SQL", default="")
    ids: tuple[str, ...] = option("Only the message with this id; may be repeated.", "ID", default=(), name="--id")

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            at = getattr(self, name)
            if at is not None and at.tzinfo is None:
                object.__setattr__(self, name, at.replace(tzinfo=UTC))


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Options of a replay."""

    table: str = option("Folder or URL of the archive.", "DIR")
    run: str = option("Name of the replay; the same name continues it.", "NAME")
    batch_messages: int = option(
        "Approximate number of messages in a transaction.", allowed=limits.REPLAY_BATCH_MESSAGES, name="--batch"
    )
    bad_rows: str = _bad_rows()


def _price(of: str, name: str, default: float) -> Any:
    return option(f"Cost of {of}.", "X", allowed=Between(0, 1e9), default=default, name=name)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices, in seconds of work. If ``fenced``, only the receipt of the last receive deletes."""

    work: float = _price("a second of wasted work", "--price-work", 1.0)
    wait: float = _price("a second of waiting after a crash", "--price-wait", 1.0)
    dead_letter: float = _price("a false dead letter", "--price-dead-letter", 60.0)
    fenced: bool = True


@dataclass(frozen=True, kw_only=True)
class TuneOptions(Prices):
    """Options of the estimates and recommendations (``docs/pipeline.md``).

    ``quantile`` is reported, and must be identifiable for a recommendation. ``prior`` is the number of receipts of the
    queue that a key without receipts borrows. ``receives_max`` is the default for queues without that setting.
    """

    quantile: float = option(
        "Quantile of the processing times to estimate.", "X", allowed=Between(0.5, 0.9999), default=0.99
    )
    half_life_days: float = option(
        "Days after which the weight of a receipt halves.",
        "X",
        allowed=Between(0, 3_650),
        default=7.0,
        name="--half-life",
    )
    gain_min: float = option("Share of the cost that a change must save.", "X", allowed=Between(0, 1), default=0.10)
    prior: float = 30.0
    receives_max: int = 5

    @property
    def receipts_min(self) -> int:
        """The number of first receipts required for the quantile: 3 / (1 − p), so that three lie beyond it."""
        return round(3.0 / (1.0 - self.quantile))


@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    """The classes of a routing table. Three or four save nearly as much as one timeout per key."""

    classes: int = option("Maximum number of classes.", allowed=Range(minimum=1, maximum=32, default=4))
    attribute: str = option("Message attribute with the kind of work.", "NAME", default=ROUTING_ATTRIBUTE_DEFAULT)
    queue_pattern: str = option(
        "Name of each class's queue; {queue} and {class} are replaced.", "TEXT", default="{queue}-{class}"
    )
