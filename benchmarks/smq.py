"""SMQ against SQS JSON, in alternating turns on one server, with a queue each."""

from collections.abc import Iterator
from statistics import median

from benchmarks import rates
from benchmarks.bench import Bench, Opened
from benchmarks.kinds import TURNS, per_s
from benchmarks.rates import CYCLE, CYCLE_TEN, SEND, SEND_TEN, Workload
from benchmarks.row import Row, Section, alone, failed
from benchmarks.servers import VEILMQ
from benchmarks.sqs import Sqs

PAIRS = (
    (SEND, Workload(figure="SMQ, send", script="smq_send", per_s=SEND.per_s, stored=SEND.stored)),
    (CYCLE, Workload(figure="SMQ, cycle", script="smq_cycle", per_s=CYCLE.per_s, short=CYCLE.short)),
    (
        SEND_TEN,
        Workload(figure="SMQ, send by ten", script="smq_send_ten", per_s=SEND_TEN.per_s, stored=SEND_TEN.stored),
    ),
    (CYCLE_TEN, Workload(figure="SMQ, cycle by ten", script="smq_cycle_ten", per_s=CYCLE_TEN.per_s)),
)


def measure(bench: Bench) -> Section:
    """Measure each workload over both protocols in turn."""
    bench.log("smq …")
    try:
        with bench.opened(VEILMQ) as opened:
            rows = tuple(row for pair in PAIRS for row in _rows(bench, opened, *pair))
    except rates.FAILURES as failure:
        bench.log(f"  {failure}")
        rows = (alone("SMQ", "", failed(failure)),)
    return Section(name="SMQ beside SQS JSON", rows=rows)


def _rows(bench: Bench, opened: Opened, sqs: Workload, smq: Workload) -> Iterator[Row]:
    bench.log(f"  {smq.figure}")
    measured, shares = [], []
    for turn in range(TURNS):
        base = _per_s(bench, opened, sqs, turn)
        measured.append(_per_s(bench, opened, smq, turn))
        shares.append(measured[-1] / base)
    yield alone(smq.figure, "requests/s", median(measured))
    yield alone(f"{smq.figure} ÷ SQS JSON", "times", median(shares))


def _per_s(bench: Bench, opened: Opened, workload: Workload, turn: int) -> float:
    """Return the requests per second on a new queue, which both protocols address by name."""
    with Sqs(port=opened.port) as sqs:
        url = sqs.create_queue(f"{workload.script.replace('_', '-')}-{turn}")
    return per_s(opened, workload, url, bench.seconds / 2, bench.connections, {})
