"""Pipeline jobs that are killed: each message arrives exactly once, with Spark locally and as a cluster.

`PROVE=whole` sends many more messages.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable

from tests.bucket import S3Server
from tests.client.traffic import drained, left, send_in_order
from tests.conftest import EVERYTHING, need_java
from tests.internals.proofs.standalone import Standalone
from tests.proofs.served import ServedFolder, wait_until
from veilmq.client import ClientError, HttpQueueClient, NewMessage, Unreachable
from veilmq.core.messages import Attribute
from veilmq.core.settings import RoutingTable, TimeoutClass
from veilmq.pipeline.route import create_queues

WHOLE = os.environ.get("PROVE") == "whole"
MESSAGES = 40_000 if WHOLE else 2_000
GROUPS = 20
PATIENCE_S = 300.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]

CLASSES = tuple(
    TimeoutClass(name=name, visibility_timeout_s=600, queue=f"{name}.fifo") for name in ("short", "middle", "long")
)
TABLE = RoutingTable(version=1, classes=CLASSES, keys={"a": 0, "b": 1}, default=2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedFolder]:
    """Run a server process, which restarts on the same port after a kill."""
    need_java()
    with ServedFolder(tmp_path / "data") as served:
        yield served


class Job:
    def __init__(self, *words: str, log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "veilmq", "pipeline", *words],
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            )
        self._log = log

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self.check(self._process.wait(PATIENCE_S))

    def wait(self) -> None:
        self.check(self._process.wait(PATIENCE_S))

    def alive(self) -> None:
        self.check(self._process.poll() or 0)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def check(self, code: int) -> None:
        assert code == 0, self._log.read_text(errors="replace")[-4000:]


@contextmanager
def job(*words: str, log: Path) -> Iterator[Job]:
    running = Job(*words, log=log)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            running.kill()


def until(holds: Callable[[], bool], running: Job) -> None:
    """Wait until the job makes `holds` true."""

    def seen() -> bool:
        running.alive()
        return answered(holds)

    wait_until(seen, within_s=PATIENCE_S)


def answered(holds: Callable[[], bool]) -> bool:
    try:
        return holds()
    except (Unreachable, ClientError):  # the server is being killed
        return False


def send(client: HttpQueueClient, queue: str, *, fifo: bool) -> dict[str, str]:
    sent = {f"message {number}": "abc"[number % 3] for number in range(MESSAGES)}
    messages = [
        NewMessage(
            body=body,
            attributes={"Type": Attribute(type="String", text=kind)},
            group=f"g{number % GROUPS}" if fifo else None,
            dedup_id=body.replace(" ", "-") if fifo else None,
        )
        for number, (body, kind) in enumerate(sent.items())
    ]
    send_in_order(client, queue, messages)
    return sent


@EVERYTHING
def test_messages_are_routed_once_and_in_order_despite_kills(server: ServedFolder, tmp_path: Path) -> None:
    """The driver and the server are killed."""
    endpoint = server.endpoint
    rules = tmp_path / "routing.json"
    rules.write_bytes(msgspec.json.encode(TABLE))
    words = ["route", "intake.fifo", "--table", str(rules), "--checkpoint", str(tmp_path / "checkpoint")]
    words += ["--endpoint", endpoint, "--continuous", "--batch", str(MESSAGES // 8), "--master", "local[2]"]
    with HttpQueueClient(endpoint) as client:
        client.create_queue("intake.fifo", {"fifo": True})
        create_queues(client, TABLE, receives_max=3)
        sent = send(client, "intake.fifo", fifo=True)

        def arrived() -> int:
            return sum(client.show(each.queue).visible for each in CLASSES)

        with job(*words, log=tmp_path / "first.log") as running:
            until(lambda: arrived() > 0, running)
            running.kill()
        assert arrived() < MESSAGES, "killed too late"
        with job(*words, log=tmp_path / "second.log") as running:
            before = arrived()
            until(lambda: arrived() > before, running)
            server.kill()
            server.start()
            until(lambda: sum(left(client, "intake.fifo")) == 0, running)
            running.stop()
        for index, each in enumerate(CLASSES):
            found: dict[str | None, list[str]] = defaultdict(list)
            for message in drained(client, each.queue):
                found[message.group].append(message.body)
            wanted: dict[str | None, list[str]] = defaultdict(list)
            for number, (body, kind) in enumerate(sent.items()):
                if TABLE.keys.get(kind, TABLE.default) == index:
                    wanted[f"g{number % GROUPS}"].append(body)
            assert found == wanted


@EVERYTHING
def test_messages_are_archived_once_on_a_cluster_despite_a_kill(server: ServedFolder, tmp_path: Path) -> None:
    endpoint = server.endpoint
    with HttpQueueClient(endpoint) as client, Standalone(tmp_path / "cluster") as cluster:
        client.create_queue("orders")
        sent = send(client, "orders", fifo=False)
        table = tmp_path / "archive"
        words = ["archive", "orders", "--table", str(table), "--endpoint", endpoint, "--batch", str(MESSAGES // 8)]
        words += ["--master", cluster.master, "--conf", "spark.executor.memory=512m"]
        words += ["--conf", "spark.driver.host=127.0.0.1"]
        with job(*words, "--continuous", log=tmp_path / "first.log") as running:
            until(lambda: sum(left(client, "orders")) < MESSAGES, running)
            running.kill()
        assert sum(left(client, "orders")) > 0, "killed too late"
        with job(*words, log=tmp_path / "second.log") as running:
            running.wait()
        rows = DeltaTable(table).to_pyarrow_table(columns=["body"])["body"].to_pylist()
        assert left(client, "orders") == (0, 0)
        assert len(rows) == MESSAGES
        assert set(rows) == set(sent)


@pytest.mark.timeout(2_400)
@pytest.mark.parametrize(("driver_kills", "s3_kills"), [(5, 2) if WHOLE else (1, 1)])
def test_messages_are_archived_once_on_a_bucket_despite_kills(
    server: ServedFolder, s3: S3Server, bucket: str, tmp_path: Path, driver_kills: int, s3_kills: int
) -> None:
    """The driver and the S3 server are killed. A replay of the table has each message once, too."""
    endpoint, table = server.endpoint, f"{bucket}/archive"
    seed = time.time_ns()
    chance = random.Random(seed)
    where = ["--table", table, "--endpoint", endpoint, "--master", "local[2]"]
    where += ["--conf", f"spark.jars={s3.settings['spark.jars']}"]  # all else is in the environment
    words = ["archive", "orders", *where, "--batch", str(MESSAGES // 20), "--compact-minutes", "1"]
    failed = 0
    with HttpQueueClient(endpoint) as client:
        client.create_queue("orders")
        sent = send(client, "orders", fifo=False)
        for kill in range(driver_kills):
            with job(*words, "--continuous", log=tmp_path / f"{kill}.log") as running:
                before = sum(left(client, "orders"))
                until(lambda: sum(left(client, "orders")) < before, running)  # noqa: B023
                time.sleep(chance.uniform(0.0, 1.0))  # any moment of a batch
                if kill < s3_kills:
                    s3.kill()
                    time.sleep(chance.uniform(0.0, 2.0))
                    s3.start()
                    before = sum(left(client, "orders"))
                    wait_until(
                        lambda: running.ended or answered(lambda: sum(left(client, "orders")) < before),  # noqa: B023
                        within_s=PATIENCE_S,
                    )
                failed += running.ended
        waiting = sum(left(client, "orders"))
        assert waiting > 0, "killed too late"
        with job(*words, log=tmp_path / "last.log") as running:
            running.wait()
        bodies = Counter(DeltaTable(table).to_pyarrow_table(columns=["body"])["body"].to_pylist())
        print(  # noqa: T201 - a proof shows its figures
            f"\nseed {seed}: {MESSAGES} sent, driver killed {driver_kills} times, S3 server {s3_kills} times "
            f"(the job failed of it {failed} times), {waiting} left for the last run: "
            f"{bodies.total()} rows, {len(bodies)} different, {len(sent.keys() - bodies.keys())} missing; "
            f"version {DeltaTable(table).version()} of the table, {len(DeltaTable(table).file_uris())} files"
        )
        assert left(client, "orders") == (0, 0)
        assert bodies == Counter(sent.keys())
        client.create_queue("again")
        again = ["replay", "again", *where, "--run", "one", "--batch", str(MESSAGES // 4)]
        if WHOLE:
            with job(*again, log=tmp_path / "replay.log") as running:
                until(lambda: client.show("again").visible > 0, running)
                running.kill()
        with job(*again, log=tmp_path / "replay-again.log") as running:
            running.wait()
        replayed = Counter(message.body for message in drained(client, "again"))
        print(f"replayed: {replayed.total()} messages, {len(replayed)} different")  # noqa: T201
        assert replayed == bodies
