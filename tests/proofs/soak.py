"""A server under mixed load for hours, with restarts: `make soak HOURS=1`. It must not lose, leak or slow down.

Threads send to and receive from a standard queue with delays, batches, late deletes and dead letters, a FIFO queue and
a queue of long polls, by real sockets, and keep the books of the crash proof (`ledger.py`). One more thread takes
messages through a queue of its own, one after the other, and measures how long a way takes: send, receive, delete.
Producers pause where much waits, so that the load is the same from the first minute to the last.

The time has ten tenths, after a warm-up of seven minutes. In the middle ones the server is restarted again and again,
by SIGTERM and SIGKILL in turns; the others belong to two long lives of a process, in which a leak shows. The last tenth
is compared with the first: memory may be 5 % more, the 99th percentile of the ways 10 % more, and no more descriptors
are open. At the end the queues are drained: what was acknowledged and not deleted is there.

The threads remember every message: some 300 MB an hour.
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
RESTARTED = range(4, 7)
"""The tenths (from 1) in which the server is restarted."""
RESTARTS = 15
WARM_UP_S = 420.0
"""However long the run is: the memory of a new server grows by 4 % in six and a half minutes, and then no more.

On a busy machine it was 77.4 MB at the start, 79.2 MB after 150 s, 80.7 MB after 390 s and 80.8 MB after 586 s. SQLite
had 3.8 MB from the first half minute on. A life of the server that is to be compared with another must be as old.
"""
SAMPLE_S_MAX = 1.0
WAITING_MAX = 500
"""Messages of a queue from which on its producers pause."""
PROBE = "probe"
FILLING = "filling.fifo"
FILLED = 20_000
"""Messages that a FIFO queue is sent first: they touch all of the table of 16 MB by which duplicates are found."""
MEMORY_DRIFT_MAX, LATENCY_DRIFT_MAX = 0.05, 0.10
FILES_SPARE = 2  # of connections that come and go
WORK = Path(__file__).parents[2] / "build" / "soak"


class Tenth(NamedTuple):
    """Medians of a tenth of the time, and the ways of messages that began in it."""

    memory_bytes: float
    files: float
    way_p50_ms: float
    way_p99_ms: float
    ways: int
    restarts: int


class Soaked(NamedTuple):
    """What a run has found."""

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
    """The same on a FIFO queue."""


class Polled(Paced):
    """Long polls, on a queue that is empty most of the time."""

    queue = "polled"
    attributes: ClassVar = {"VisibilityTimeout": str(TIMEOUT_S)}
    wait_s = 1

    def produce(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        time.sleep(0.3)
        super().produce(caller, chance, number)


class DeadLetters:
    """Receives and deletes the dead letters, and knows each by its body and its id."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.violations: list[str] = []

    def step(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        found = caller.call("ReceiveMessage", MaxNumberOfMessages=10).get("Messages", [])
        for each in found:
            if self.ids.setdefault(each["Body"], each["MessageId"]) != each["MessageId"]:
                self.violations.append(f"{each['Body']} died twice")
        if found:
            entries = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(found)]
            caller.call("DeleteMessageBatch", Entries=entries)
        else:
            time.sleep(0.1)


class Probe:
    """Takes one message after the other through a queue; `ways_s` has the seconds from each send to its deletion."""

    def __init__(self) -> None:
        self.ways_s = array("d")

    def step(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        began_s = time.perf_counter()
        caller.call("SendMessage", MessageBody=str(number))
        found = caller.call("ReceiveMessage").get("Messages", [])
        for each in found:
            caller.call("DeleteMessage", ReceiptHandle=each["ReceiptHandle"])
        if found:
            self.ways_s.append(time.perf_counter() - began_s)
        time.sleep(0.02)


class Soak:
    """One run on a data folder, for `seconds` after the warm-up, which begins with `filled` messages."""

    def __init__(
        self, folder: Path, *, seconds: float, seed: int, filled: int = FILLED, warm_up_s: float = WARM_UP_S
    ) -> None:
        self.server = ServedFolder(folder / "store")
        self.loads: list[Paced] = [Paced(), PacedInOrder(), Polled()]
        self.dead, self.probe = DeadLetters(), Probe()
        self._seconds, self._seed, self._filled, self._warm_up_s = seconds, seed, filled, warm_up_s
        self._restarts = 0

    def run(self, progress: Callable[[int, Tenth], object]) -> Soaked:
        """Run it; `progress` is called after each tenth."""
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
        """Look at the server for so long, and restart it so many times."""
        memory, files, first_way, done = list[int](), list[int](), len(self.probe.ways_s), 0
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
        ways_ms = [1_000 * way_s for way_s in self.probe.ways_s[first_way:]]
        cuts = statistics.quantiles(ways_ms, n=100) if len(ways_ms) > 1 else [0.0] * 99
        return Tenth(statistics.median(memory), statistics.median(files), cuts[49], cuts[98], len(ways_ms), done)

    def _restart(self) -> None:
        self._restarts += 1
        if self._restarts % 2:
            self.server.stop()
        else:
            self.server.kill()
        self.server.start()

    def _settle(self, tenths: list[Tenth]) -> Soaked:
        """Drain the queues, and return what does not fit together."""
        violations, told = list[str](), list[tuple[int, int, int]]()
        for load in self.loads:
            with closing(SqsCaller(self.server.port, load.queue)) as caller:
                left = drain(caller, load)
            with closing(SqsCaller(self.server.port, DEAD)) as caller:
                while counts(caller) != (0, 0):
                    self.dead.step(caller, random.Random(), 0)
            told.append(load.ledger.told())
            dead = self.dead.ids if load is self.loads[0] else {}  # whose bodies others may have, too
            violations += load.ledger.settle({*left, *dead})
            violations += [f"{body} is there {count} times" for body, count in left.items() if count > 1]
            if isinstance(load, OrderedLoad):
                violations += load.order.violations
        violations += self.loads[0].ledger.died(self.dead.ids, receives_max=RECEIVES_MAX) + self.dead.violations
        sent, delivered, deleted = (sum(each) for each in zip(*told, strict=True))
        return Soaked(tenths, violations, sent, delivered, deleted, len(self.dead.ids))


def drift(tenths: Sequence[Tenth], figure: str) -> float:
    """Return by which share a figure of the last tenth is more than that of the first; infinite where that is 0."""
    first, last = (getattr(tenths[at], figure) for at in (0, -1))
    return last / first - 1 if first else math.inf


def failures(soaked: Soaked) -> list[str]:
    """Return why a run has failed, as sentences; none where it has not."""
    found = [f"{len(soaked.violations)} violations, the first: {soaked.violations[0]}"] if soaked.violations else []
    for figure, most, words in (
        ("memory_bytes", MEMORY_DRIFT_MAX, "memory"),
        ("way_p99_ms", LATENCY_DRIFT_MAX, "the 99th percentile of the ways"),
    ):
        if (grown := drift(soaked.tenths, figure)) > most:
            found.append(f"{words} grew by {grown:.1%} from the first tenth to the last; at most {most:.0%} is allowed")
    if (more := soaked.tenths[-1].files - soaked.tenths[0].files) > FILES_SPARE:
        found.append(f"{more:g} more descriptors are open in the last tenth than in the first")
    return found


def show(*cells: object) -> None:
    """Print a row of the table."""
    sys.stdout.write("  ".join(f"{cell:>10}" for cell in cells) + "\n")
    sys.stdout.flush()


def show_tenth(number: int, tenth: Tenth) -> None:
    """Print a tenth as a row."""
    memory = f"{tenth.memory_bytes / 1e6:.1f} MB"
    show(number, memory, f"{tenth.files:g}", f"{tenth.way_p50_ms:.2f} ms", f"{tenth.way_p99_ms:.2f} ms", tenth.restarts)


def main() -> int:
    """Run it, print a row for each tenth, write `soak.json`, and return 1 if it has failed."""
    parser = argparse.ArgumentParser(prog="make soak", description="A server under mixed load, with restarts.")
    parser.add_argument("--hours", type=float, default=1.0, help="at least 0.6, or a young server hides a leak")
    parser.add_argument("--seed", type=int, default=20240229, help="draws another run")
    parser.add_argument("--work", type=Path, default=WORK, help="a folder on a real disk; emptied first")
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    gc.freeze()
    gc.disable()  # the books only grow, and looking through them for cycles would be in the measured times
    sys.setswitchinterval(0.001)
    show("tenth", "memory", "files", "p50", "p99", "restarts")
    soaked = Soak(options.work, seconds=options.hours * 3_600, seed=options.seed).run(show_tenth)
    drifts = {name: drift(soaked.tenths, name) for name in ("memory_bytes", "files", "way_p50_ms", "way_p99_ms")}
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
    for sentence in wrong or ["nothing is lost, leaked or slower"]:
        sys.stdout.write(f"{'FAILED: ' if wrong else ''}{sentence}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
