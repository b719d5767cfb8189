"""The job ``route-table``: write a ``core.routing.RoutingTable``, which assigns routing keys to timeout classes.

The job ``route`` forwards by this file, and a server can apply it as visibility rules.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from veilmq.core.routing import ATTRIBUTE_DEFAULT, RoutingTable, TimeoutClass
from veilmq.pipeline.cell_store import CellStore
from veilmq.pipeline.classes import classes_of
from veilmq.pipeline.cost import Load
from veilmq.pipeline.estimate import RENEWALS_IN_TIMEOUT, Estimate, estimates
from veilmq.pipeline.failures import PipelineFailed
from veilmq.pipeline.recommendation import QueueFacts, plain_name
from veilmq.pipeline.tallies import KeyTally
from veilmq.pipeline.tune import DEFAULTS, known
from veilmq.pipeline.tune_options import TuneOptions
from veilmq.pipeline.tuning import explore_s, options_for, receives_max_of

CLASSES_DEFAULT = 4
"""Three or four classes save nearly as much as one timeout per key."""

QUEUE_PATTERN = "{queue}-{class}"
FIFO = ".fifo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A routing table and its cost per message; ``cost_by_count`` has the costs with at most 1, 2, … classes."""

    table: RoutingTable
    cost: float
    cost_by_count: tuple[float, ...]


def route_table(
    spark: SparkSession,
    *,
    state: str,
    queue: str,
    path: Path | None = None,
    classes: int = CLASSES_DEFAULT,
    attribute: str = ATTRIBUTE_DEFAULT,
    queue_pattern: str = QUEUE_PATTERN,
    options: TuneOptions = DEFAULTS,
    facts: QueueFacts | None = None,
) -> Routed:
    """Compute the routing table of ``queue`` from the cells of ``tune`` in ``state``; write it to ``path`` as JSON.

    The version is that of the table at ``path``, plus 1 if the content differs. ``queue_pattern`` is the name of each
    class queue, with placeholders ``{queue}`` and ``{class}``. Raises ``PipelineFailed`` if there is too little data.
    """
    tallies = _queue_tallies(known(CellStore(spark, state).cells(), options), queue)
    options = options_for(tallies, options)
    _, found = estimates(tallies, options=options)
    made = routed(found, receives_max=receives_max_of(facts, options), classes=classes, options=options)
    if made is None:
        raise PipelineFailed(
            f"The queue {queue} has too few receipts for a routing table: run tune again after more work is done."
        )
    table = msgspec.structs.replace(
        made.table, attribute=attribute, classes=_named(made.table.classes, queue, queue_pattern)
    )
    return Routed(
        table=table if path is None else _written(path, table), cost=made.cost, cost_by_count=made.cost_by_count
    )


def _queue_tallies(tallies: list[KeyTally], queue: str) -> list[KeyTally]:
    """Return the tallies of ``queue``, named with or without its account."""
    found = [each for each in tallies if queue in {each.queue, plain_name(each.queue)}]
    names = sorted({each.queue for each in found})
    if len(names) > 1:
        raise PipelineFailed(f"Several accounts have a queue {queue}: name one of {', '.join(names)}.")
    return found


def routed(found: Mapping[str, Estimate], *, receives_max: int, classes: int, options: TuneOptions) -> Routed | None:
    """Return the table of the keys in ``found``; ``None`` if no key has enough data.

    Unlisted keys belong to the longest class, because a timeout that is too short is expensive. For the same reason,
    keys whose work never ended in the log get an additional class, unless another is as long as the timeout to try for
    them. Keys of renewing consumers get the first class with room for three renewals.
    """
    loads = _loads(found, receives_max=receives_max)
    if not loads:
        return None
    by_count = [classes_of([*loads.values()], count, prices=options.prices) for count in range(1, classes + 1)]
    best = min(by_count, key=lambda each: each.cost)
    least_s = _renewing(found) | _stuck(found, options)
    longer_s = max(_stuck(found, options).values(), default=0)
    timeouts_s = best.timeouts_s if longer_s <= best.timeouts_s[-1] else (*best.timeouts_s, longer_s)
    last = len(timeouts_s) - 1
    keys = dict(zip(loads, best.members, strict=True))
    for key, minimum_s in least_s.items():
        keys[key] = next((index for index, each in enumerate(timeouts_s) if each >= minimum_s), last)
    table = RoutingTable(
        version=1,
        classes=tuple(
            TimeoutClass(name=f"class-{number}", visibility_timeout_s=timeout_s)
            for number, timeout_s in enumerate(timeouts_s, start=1)
        ),
        keys=dict(sorted((key, index) for key, index in keys.items() if key)),
        default=last,
    )
    return Routed(table=table, cost=best.cost, cost_by_count=tuple(each.cost for each in by_count))


def _stuck(found: Mapping[str, Estimate], options: TuneOptions) -> dict[str, int]:
    """Return the timeout to try for each key with enough receipts whose work never ended in the log."""
    return {
        key: explore_s(each.first)
        for key, each in found.items()
        if each.renewal_s is None and each.first.receipts >= options.receipts_min and not each.is_known
    }


def _loads(found: Mapping[str, Estimate], *, receives_max: int) -> dict[str, Load]:
    """Return the load of each key with a known curve, weighted by its share of the messages."""
    useful = {key: each for key, each in found.items() if each.renewal_s is None and each.is_known}
    total = sum(each.first.receipts for each in useful.values())
    return {
        key: each.load(receives_max=receives_max, weight=each.first.receipts / total) for key, each in useful.items()
    }


def _renewing(found: Mapping[str, Estimate]) -> dict[str, int]:
    """Return the minimum timeout of each key whose consumers renew."""
    return {
        key: math.ceil(RENEWALS_IN_TIMEOUT * each.renewal_s)
        for key, each in found.items()
        if each.renewal_s is not None
    }


def _named(classes: Iterable[TimeoutClass], queue: str, pattern: str) -> tuple[TimeoutClass, ...]:
    """Return the classes with their queue names; a FIFO queue gets FIFO class queues."""
    stem, ending = plain_name(queue).removesuffix(FIFO), FIFO if queue.endswith(FIFO) else ""
    return tuple(
        msgspec.structs.replace(each, queue=pattern.replace("{queue}", stem).replace("{class}", each.name) + ending)
        for each in classes
    )


def _written(path: Path, table: RoutingTable) -> RoutingTable:
    """Write ``table`` with its version atomically, and return it."""
    if path.exists():
        before = msgspec.json.decode(path.read_bytes(), type=RoutingTable)
        table = msgspec.structs.replace(table, version=before.version)
        if table == before:
            return before
        table = msgspec.structs.replace(table, version=before.version + 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n")
    part.replace(path)
    return table
