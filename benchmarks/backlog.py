"""The cost of a backlog: receive + delete, memory, restart, and calls that must not depend on it.

The same server has a reference queue with 1,000 messages. Rounds alternate between the two queues, so both costs are
from the same minute. A round first sends the messages that it will receive (untimed), then times `ROUND` receives and
deletes one by one, so each queue keeps its backlog. Queues are filled in batches of ten.

Kinds: *waiting* (just sent), *delayed* (sent with the longest delay; the rounds receive new messages), *released*
(received once and made visible again), *fifo* (in 100,000 groups, or as many as there are messages).
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks import groups, rates, stock
from benchmarks.bench import Bench, Opened, Place
from benchmarks.process import TRIES, Process, ServerError, running, started
from benchmarks.row import Row, Section, alone, failed
from benchmarks.servers import VEILMQ
from benchmarks.sqs import Sqs, SqsError

FIFO = "fifo"
KINDS = ("waiting", "delayed", "released", FIFO)
GROUPS = 100_000
REFERENCE = 1_000
ROUND = 1_000
ROUNDS = 8
CALLS = 20
DELAY_S = 900
RETRY_EVERY_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size of backlog; `pair_us` is the wall time of a receive + delete under load, `pair_cpu_us` its CPU time."""

    kind: str
    messages: int
    fill_per_s: float
    pair_us: float
    reference_us: float
    pair_cpu_us: float
    rss_bytes: int
    attributes_ms: float
    to_zero_ms: float

    @property
    def ratio(self) -> float:
        return self.pair_us / self.reference_us


def sizes(most: int) -> list[int]:
    """Return 1,000, then powers of ten below `most`, and `most`."""
    powers = [10**power for power in range(3, 8) if 10**power < most]
    return [*powers, most]


def measure(bench: Bench) -> Iterator[Section]:
    """Yield one section per kind; only *waiting* unless the whole run was requested."""
    for kind in KINDS if bench.whole else KINDS[:1]:
        bench.log(f"backlog, {kind} …")
        yield _section(bench, kind)


def curves(sections: Sequence[Section]) -> Mapping[str, list[tuple[int, float]]]:
    """Return (messages, µs of one receive + delete) for each kind of backlog."""
    found: dict[str, list[tuple[int, float]]] = {}
    for section in sections:
        points = section.raw.get("points")
        for point in points if isinstance(points, list) else ():
            found.setdefault(point["kind"], []).append((point["messages"], point["pair_us"]))
    return found


def _section(bench: Bench, kind: str) -> Section:
    if missing := VEILMQ.missing():
        return Section(name=f"backlog, {kind}", rows=(alone(f"backlog, {kind}", "µs", missing),))
    points: list[Point] = []
    end: dict[str, float] = {}
    trouble = ""
    try:
        for item in _measure_kind(bench, kind):
            if isinstance(item, Point):
                points.append(item)
            else:
                end.update(item)
    except rates.FAILURES as failure:
        trouble = failed(failure)
        bench.log(f"  {failure}")
    rows = tuple(_rows(kind, points, end, trouble))
    raw = {"points": [{**asdict(point), "ratio": point.ratio} for point in points], **end}
    return Section(name=f"backlog, {kind}", rows=rows, raw=raw)


def _measure_kind(bench: Bench, kind: str) -> Iterator[Point | dict[str, float]]:
    with bench.folder() as data:
        place = Place.fresh(VEILMQ, data=data)
        with running(place.command) as process, Sqs(port=place.port) as sqs:
            opened = Opened(process=process, port=place.port)
            ending, attributes = (".fifo", {"FifoQueue": "true"}) if kind == FIFO else ("", {})
            queue_url, reference_url = (
                sqs.create_queue(f"{name}{ending}", attributes=attributes) for name in ("backlog", "reference")
            )
            _fill(opened, reference_url, messages=REFERENCE)
            filled, began = 0, time.monotonic()
            for size in sizes(bench.backlog_max):
                fill_s = _grow(opened, kind, queue_url, messages=size - filled)
                bench.log(f"  {size:,} {kind}, filled in {fill_s:.1f} s")
                yield _point(opened, kind, queue_url, reference_url, size, (size - filled) / fill_s)
                filled = size
                if kind == "delayed" and time.monotonic() - began > DELAY_S:
                    raise ServerError(
                        f"the delays of {DELAY_S} s ended before the measurement: choose a smaller backlog"
                    )
            process.kill()
        yield {"restart_s": _restart_s(place, queue_url if kind != "delayed" else reference_url)}
        with running(place.command), Sqs(port=place.port) as sqs:
            yield {"purge_ms": _timed_ms(lambda: sqs.call("PurgeQueue", QueueUrl=queue_url))}


def _grow(opened: Opened, kind: str, queue_url: str, *, messages: int) -> float:
    """Add `messages` of this kind; return the seconds that the sends took."""
    delay_s = DELAY_S if kind == "delayed" else 0
    fill_s = _fill(opened, queue_url, messages=messages, delay_s=delay_s)
    if kind == "released":
        stock.release(port=opened.port, queue_url=queue_url, messages=messages)
    return fill_s


def _fill(opened: Opened, queue_url: str, *, messages: int, delay_s: int = 0) -> float:
    if queue_url.endswith(".fifo"):
        run, port = secrets.token_hex(4), opened.port
        return groups.send_fifo(
            port=port, queue_url=queue_url, groups=GROUPS, messages=messages, run=run, connections=8
        )
    return stock.fill(port=opened.port, queue_url=queue_url, messages=messages, delay_s=delay_s)


def _point(opened: Opened, kind: str, queue_url: str, reference_url: str, messages: int, fill_per_s: float) -> Point:
    here, reference, cpu_s = [], [], 0.0
    for _ in range(ROUNDS):
        reference.append(_round_s(opened, reference_url))
        before = _refilled(opened, queue_url)
        here.append(stock.drain(port=opened.port, queue_url=queue_url, messages=ROUND, connections=64))
        cpu_s += opened.process.usage().cpu_s - before
    with Sqs(port=opened.port) as sqs:
        attributes_ms = _median_ms(sqs, "GetQueueAttributes", QueueUrl=queue_url, AttributeNames=["All"])
        to_zero_ms = _to_zero_ms(sqs, queue_url)
    return Point(
        kind=kind,
        messages=messages,
        fill_per_s=fill_per_s,
        pair_us=median(here) / ROUND * 1e6,
        reference_us=median(reference) / ROUND * 1e6,
        pair_cpu_us=cpu_s / ROUNDS / ROUND * 1e6,
        rss_bytes=opened.process.usage().rss_bytes,
        attributes_ms=attributes_ms,
        to_zero_ms=to_zero_ms,
    )


def _round_s(opened: Opened, queue_url: str) -> float:
    _refilled(opened, queue_url)
    return stock.drain(port=opened.port, queue_url=queue_url, messages=ROUND, connections=64)


def _refilled(opened: Opened, queue_url: str) -> float:
    """Send the messages of the round; return the server's CPU seconds so far."""
    _fill(opened, queue_url, messages=ROUND)
    return opened.process.usage().cpu_s


def _median_ms(sqs: Sqs, action: str, **members: object) -> float:
    return median(_timed_ms(lambda: sqs.call(action, **members)) for _ in range(CALLS))


def _timed_ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def _to_zero_ms(sqs: Sqs, queue_url: str) -> float:
    """Return the median time of a release (a change of the visibility timeout to 0)."""
    times = []
    for n in range(CALLS):
        fifo = {"MessageGroupId": "zero", "MessageDeduplicationId": str(n)} if queue_url.endswith(".fifo") else {}
        sqs.call("SendMessage", QueueUrl=queue_url, MessageBody=stock.BODY, **fifo)
        message = sqs.call("ReceiveMessage", QueueUrl=queue_url)["Messages"][0]
        handle = {"QueueUrl": queue_url, "ReceiptHandle": message["ReceiptHandle"]}
        times.append(_timed_ms(lambda: sqs.call("ChangeMessageVisibility", **handle, VisibilityTimeout=0)))  # noqa: B023
        again = sqs.call("ReceiveMessage", QueueUrl=queue_url)["Messages"][0]
        sqs.call("DeleteMessage", QueueUrl=queue_url, ReceiptHandle=again["ReceiptHandle"])
    return median(times)


def _restart_s(place: Place, queue_url: str) -> float:
    """Return the time from the start of the process, after SIGKILL, to the first delivered message."""
    began = time.perf_counter()
    with started(place.command) as process:
        for _ in range(TRIES * 10):
            if _receives(place.port, queue_url):
                return time.perf_counter() - began
            _check_running(process)
            time.sleep(RETRY_EVERY_S)
    raise ServerError("no message was received after the restart")


def _receives(port: int, queue_url: str) -> bool:
    try:
        with Sqs(port=port) as sqs:
            return bool(sqs.call("ReceiveMessage", QueueUrl=queue_url).get("Messages"))
    except (OSError, SqsError):
        return False


def _check_running(process: Process) -> None:
    if process.ended():
        raise ServerError(f"the server ended after its restart: {process.output()}")


def _rows(kind: str, points: list[Point], end: dict[str, float], trouble: str) -> Iterator[Row]:
    for point in points:
        at = f"{point.messages:,} {kind}"
        yield alone(f"{at}: receive + delete", "µs", point.pair_us, note=f"server CPU {point.pair_cpu_us:.1f} µs")
        yield alone(f"{at}: cost ÷ cost at {REFERENCE:,}", "times", point.ratio)
        yield alone(f"{at}: memory", "MB", point.rss_bytes / 1e6)
        yield alone(f"{at}: attributes", "ms", point.attributes_ms)
        yield alone(f"{at}: change to 0", "ms", point.to_zero_ms)
    if points:
        at = f"{points[-1].messages:,} {kind}"
        for name, figure, unit in (
            ("restart_s", "SIGKILL, restart, first receive", "s"),
            ("purge_ms", "purge", "ms"),
        ):
            if name in end:
                yield alone(f"{at}: {figure}", unit, end[name])
    if trouble:
        yield alone(f"backlog, {kind}", "", trouble)
