"""A server under mixed load for hours, with restarts: `make soak HOURS=1`. It must not lose messages, leak or slow.

Threads use a standard queue with delays, batches, late deletes and dead letters, a FIFO queue and a queue of long
polls, over real sockets, and record all replies in the ledger of the crash proof. One more thread sends, receives and
deletes one message after the other on its own queue, and measures these cycles. Producers pause while many messages
wait, so that the load stays the same.

After a warm-up of seven minutes the time is divided into tenths. In the middle ones the server is restarted, by SIGTERM
and SIGKILL in turn; the others belong to two long-running processes, in which a leak shows. Between the first and the
last tenth memory may grow by 5 %, the 99th percentile of the cycles by 10 %, and the open descriptors not at all.
Finally the queues are drained: all messages acknowledged and not deleted must be there.

The threads store every message: some 300 MB an hour.
"""

import argparse
import gc
import json
import math
import random
import shutil
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import psutil

from tests.proofs.ledger import SqsCaller
from tests.proofs.loads import DEAD, RECEIVES_MAX, TIMEOUT_S, Callers, Load, OrderedLoad, counts, drain, patiently
from tests.proofs.served import ServedFolder

TENTHS = 10
RESTARTED = range(4, 7)  # the tenths (from 1) with restarts
RESTARTS = 15
WARM_UP_S = 420.0
"""The memory of a new server grows by 4 % in the first six and a half minutes, and then no more.

On a busy machine it was 77.4 MB at the start, 79.2 MB after 150 s, 80.7 MB after 390 s and 80.8 MB after 586 s. SQLite
had 3.8 MB from the first half minute on. Only processes of the same age can be compared.
"""
SAMPLE_S_MAX = 1.0
WAITING_MAX = 500  # messages of a queue at which its producers pause
PROBE = "probe"
FILLING = "filling.fifo"
FILLED = 20_000  # messages sent first to a FIFO queue, which touch the whole deduplication table of 16 MB
MEMORY_DRIFT_MAX, LATENCY_DRIFT_MAX = 0.05, 0.10
FILES_SPARE = 2  # short-lived connections
WORK = Path(__file__).parents[2] / "build" / "soak"


class Tenth(NamedTuple):
    """Medians of a tenth of the time, and the cycles that began in it."""

    memory_bytes: float
    files: float
    cycle_p50_ms: float
    cycle_p99_ms: float
    cycles: int
    restarts: int


class Soaked(NamedTuple):
    tenths: list[Tenth]
    violations: list[str]
    sent: int
    delivered: int
    deleted: int
    dead: int


class Paced(Load):
    """A load whose producers pause while more than `WAITING_MAX` messages wait."""

    waiting = 0

    def produce(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        if self.waiting > WAITING_MAX:
            time.sleep(0.04)
        else:
            super().produce(caller, chance, number)


class PacedInOrder(Paced, OrderedLoad):
    pass


class Polled(Paced):
    """Long polls on a queue that is usually empty."""

    queue = "polled"
    attributes: ClassVar = {"VisibilityTimeout": str(TIMEOUT_S)}
    wait_s = 1

    def produce(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        time.sleep(0.3)
        super().produce(caller, chance, number)


class DeadLetters:
    """Receive and delete dead letters; record the id of each."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.violations: list[str] = []

    def step(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        found = caller.call("ReceiveMessage", MaxNumberOfMessages=10).get("Messages", [])
        for each in found:
            if self.ids.setdefault(each["Body"], each["MessageId"]) != each["MessageId"]:
                self.violations.append(f"{each['Body']} was dead-lettered twice")
        if found:
            entries = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(found)]
            caller.call("DeleteMessageBatch", Entries=entries)
        else:
            time.sleep(0.1)


class Probe:
    """Send, receive and delete one message after the other; `cycles_s` has the times."""

    def __init__(self) -> None:
        self.cycles_s = array("d")

    def step(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        began_s = time.perf_counter()
        caller.call("SendMessage", MessageBody=str(number))
        found = caller.call("ReceiveMessage").get("Messages", [])
        for each in found:
            caller.call("DeleteMessage", ReceiptHandle=each["ReceiptHandle"])
        if found:
            self.cycles_s.append(time.perf_counter() - began_s)
        time.sleep(0.02)


class Soak:
    """A run on a data folder, for `seconds` after the warm-up."""

    def __init__(
        self, folder: Path, *, seconds: float, seed: int, filled: int = FILLED, warm_up_s: float = WARM_UP_S
    ) -> None:
        self.server = ServedFolder(folder / "store")
        self.loads: list[Paced] = [Paced(), PacedInOrder(), Polled()]
        self.dead, self.probe = DeadLetters(), Probe()
        self._seconds, self._seed, self._filled, self._warm_up_s = seconds, seed, filled, warm_up_s
        self._restarts = 0

    def run(self, progress: Callable[[int, Tenth], object]) -> Soaked:
        """Run; call `progress` after each tenth."""
        with self.server:
            self._make_queues()
            with ExitStack() as running:
                ports = [self.server.port]
                for at, load in enumerate(self.loads):
                    running.enter_context(load.callers(ports, seed=self._seed + 100 * at))
                running.enter_context(Callers(ports, DEAD, [self.dead.step], seed=self._seed))
                running.enter_context(Callers(ports, PROBE, [self.probe.step], seed=self._seed))
                self._watch(self._warm_up_s, restarts=0)
                tenths = []
                for number in range(1, TENTHS + 1):
                    restarts = RESTARTS // len(RESTARTED) if number in RESTARTED else 0
                    tenths.append(self._watch(self._seconds / TENTHS, restarts=restarts))
                    progress(number, tenths[-1])
            return self._settle(tenths)

    def _make_queues(self) -> None:
        made: dict[str, dict[str, str]] = {DEAD: {}, PROBE: {}, FILLING: {"FifoQueue": "true"}}
        made |= {load.queue: load.attributes for load in self.loads}
        with closing(SqsCaller(self.server.port, FILLING)) as maker:
            for name, attributes in made.items():
                maker.call("CreateQueue", QueueName=name, Attributes=attributes)
            for first in range(0, self._filled, 10):
                entries = [
                    {"Id": str(at), "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": str(at)}
                    for at in range(first, first + 10)
                ]
                maker.call("SendMessageBatch", Entries=entries)
            maker.call("DeleteQueue")

    def _watch(self, seconds: float, *, restarts: int) -> Tenth:
        """Measure the server for so long, with so many restarts."""
        memory, files, first_cycle, done = list[int](), list[int](), len(self.probe.cycles_s), 0
        began_s, pause_s = time.monotonic(), min(SAMPLE_S_MAX, seconds / 10)
        with ExitStack() as stack:
            callers = [stack.enter_context(closing(SqsCaller(self.server.port, load.queue))) for load in self.loads]
            while (passed_s := time.monotonic() - began_s) < seconds:
                process = psutil.Process(self.server.pid)
                memory.append(process.memory_info().rss)
                files.append(process.num_fds())
                for load, caller in zip(self.loads, callers, strict=True):
                    load.waiting = sum(patiently(partial(counts, caller)))
                if done < restarts * passed_s / seconds:
                    self._restart()
                    done += 1
                time.sleep(pause_s)
        cycles_ms = [1_000 * cycle_s for cycle_s in self.probe.cycles_s[first_cycle:]]
        cuts = statistics.quantiles(cycles_ms, n=100) if len(cycles_ms) > 1 else [0.0] * 99
        return Tenth(statistics.median(memory), statistics.median(files), cuts[49], cuts[98], len(cycles_ms), done)

    def _restart(self) -> None:
        self._restarts += 1
        if self._restarts % 2:
            self.server.stop()
        else:
            self.server.kill()
        self.server.start()

    def _settle(self, tenths: list[Tenth]) -> Soaked:
        """Drain the queues, and return the result."""
        violations, totals = list[str](), list[tuple[int, int, int]]()
        for load in self.loads:
            with closing(SqsCaller(self.server.port, load.queue)) as caller:
                left = drain(caller, load)
            with closing(SqsCaller(self.server.port, DEAD)) as caller:
                while counts(caller) != (0, 0):
                    self.dead.step(caller, random.Random(), 0)
            totals.append(load.ledger.totals())
            dead = self.dead.ids if load is self.loads[0] else {}  # bodies of other queues may be equal
            violations += load.ledger.settle({*left, *dead})
            violations += [f"{body} is there {count} times" for body, count in left.items() if count > 1]
            if isinstance(load, OrderedLoad):
                violations += load.order.violations
        violations += (
            self.loads[0].ledger.check_dead_letters(self.dead.ids, receives_max=RECEIVES_MAX) + self.dead.violations
        )
        sent, delivered, deleted = (sum(each) for each in zip(*totals, strict=True))
        return Soaked(tenths, violations, sent, delivered, deleted, len(self.dead.ids))


def drift(tenths: Sequence[Tenth], figure: str) -> float:
    """Return the relative growth of a figure from the first to the last tenth; infinite if it was 0."""
    first, last = (getattr(tenths[at], figure) for at in (0, -1))
    return last / first - 1 if first else math.inf


def failures(soaked: Soaked) -> list[str]:
    """Return the reasons why a run has failed, as sentences."""
    found = [f"{len(soaked.violations)} violations, the first: {soaked.violations[0]}"] if soaked.violations else []
    for figure, most, words in (
        ("memory_bytes", MEMORY_DRIFT_MAX, "memory"),
        ("cycle_p99_ms", LATENCY_DRIFT_MAX, "the 99th percentile of the cycles"),
    ):
        if (grown := drift(soaked.tenths, figure)) > most:
            found.append(f"{words} grew by {grown:.1%} from the first tenth to the last; at most {most:.0%} is allowed")
    if (more := soaked.tenths[-1].files - soaked.tenths[0].files) > FILES_SPARE:
        found.append(f"{more:g} more descriptors are open in the last tenth than in the first")
    return found


def show(*cells: object) -> None:
    sys.stdout.write("  ".join(f"{cell:>10}" for cell in cells) + "\n")
    sys.stdout.flush()


def show_tenth(number: int, tenth: Tenth) -> None:
    times = [f"{each:.2f} ms" for each in (tenth.cycle_p50_ms, tenth.cycle_p99_ms)]
    show(number, f"{tenth.memory_bytes / 1e6:.1f} MB", f"{tenth.files:g}", *times, tenth.restarts)


def main() -> int:
    """Run, print a row for each tenth, write `soak.json`, and return 1 on failure."""
    parser = argparse.ArgumentParser(prog="make soak", description="A server under mixed load, with restarts.")
    parser.add_argument("--hours", type=float, default=1.0, help="at least 0.6, or a young server hides a leak")
    parser.add_argument("--seed", type=int, default=20240229, help="draws another run")
    parser.add_argument("--work", type=Path, default=WORK, help="a folder on a real disk; emptied first")
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    gc.freeze()
    gc.disable()  # the ledger only grows, and collecting it would disturb the measured times
    sys.setswitchinterval(0.001)
    show("tenth", "memory", "files", "p50", "p99", "restarts")
    soaked = Soak(options.work, seconds=options.hours * 3_600, seed=options.seed).run(show_tenth)
    drifts = {name: drift(soaked.tenths, name) for name in ("memory_bytes", "files", "cycle_p50_ms", "cycle_p99_ms")}
    wrong = failures(soaked)
    result = {"hours": options.hours, "seed": options.seed, "drift": drifts, "failures": wrong}
    result |= soaked._asdict() | {"tenths": [each._asdict() for each in soaked.tenths]}
    (options.work / "soak.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    show("drift", *(f"{share:+.1%}" for share in drifts.values()))
    restarts = sum(each.restarts for each in soaked.tenths)
    sys.stdout.write(
        f"{options.hours:g} hours, {restarts} restarts: {soaked.sent:,} sends acknowledged, {soaked.delivered:,} "
        f"deliveries, {soaked.deleted:,} deletes, {soaked.dead:,} dead letters; {options.work / 'soak.json'}\n"
    )
    for sentence in wrong or ["no loss, no leak, no slowdown"]:
        sys.stdout.write(f"{'FAILED: ' if wrong else ''}{sentence}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
