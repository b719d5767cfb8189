"""What every test may rely on: services that are needed, a server, a Spark session, and tests that run alone.

A test marked `serial` measures time, memory or processor use, so nothing may run beside it. All tests share
one pytest run with several workers; each test holds the floor together with the others, a serial one holds
it alone. A serial test takes the gate first and keeps it while it waits, so that the other workers cannot
pass it for ever. The wait happens outside the test's own timeout.
"""

import asyncio
import contextlib
import fcntl
import inspect
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from veilmq.pipeline.session import has_java

if TYPE_CHECKING:  # half a second that other tests need not wait
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

    from tests.bucket import S3Server
    from tests.consumer.workbench import Workbench
    from tests.proofs.served import StartNode
    from tests.server.push_receiver import Receiver
    from veilmq.client import HttpQueueClient
    from veilmq.testing import RunningServer

TESTS = Path(__file__).parent
PROOFS = (TESTS / "proofs", TESTS / "internals" / "proofs")
settings.register_profile("untimed", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # of any machine, however busy; on a build machine with what Hypothesis has for those
TEST_ALL = TESTS.parent / ".venv-test-all"
"""The environment of `make test-all`: Airflow and DuckDB, apart from veilmq and Spark."""
EVERYTHING = pytest.mark.everything
"""For another form of what a commit proves once, or what needs an S3 server: only in `make test-all`."""
SERVED = frozenset({"postgres", "shards", "postgres_url", "whole_browser"})
"""Stores and fixtures that are services: `make test-fast` starts none."""
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30
"""What a run of all tests has in temporary folders, with room to spare."""
MARKS = {
    "browser": (pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)),
    "serve": (pytest.mark.xdist_group("stories"),),
    "spark": (pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)),
}
"""Fixture → the marks of its tests, which run in one of the workers, so that there is one of what it starts."""


def pytest_configure() -> None:
    """Have temporary folders in memory where there is room: no test is about the speed of a disk, and most sync."""
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def in_ci() -> bool:
    """Return whether this is a build machine: `CI` is set to something other than 0, false or nothing."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def need(condition: object, what: str) -> None:
    """Skip the running test on a laptop, fail it in CI, unless `condition` holds.

    `what` names the missing service and says how to get it, e.g. "wrk (scripts/install-wrk.sh)".
    """
    if condition:
        return
    if in_ci():
        pytest.fail(f"needs {what}; CI must have it", pytrace=False)
    pytest.skip(f"needs {what}")


def need_java() -> None:
    """Skip, or fail in CI, without the Java that Spark runs on."""
    need(has_java(), "Java 17 or newer (scripts/install-java.sh)")


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have servers on PostgreSQL keep their lists of databases in a temporary folder."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """Give the one Spark session of this process; it takes some seconds to start."""
    need_java()
    from tests.spark.session import session  # noqa: PLC0415

    with session(tmp_path_factory.mktemp("spark")) as running:
        yield running


@pytest.fixture(scope="session")
def running_s3(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[S3Server]":
    """Give the one S3 server of this process."""
    from tests.bucket import GATEWAY, HOW, S3Server, jars  # noqa: PLC0415

    need(GATEWAY.exists() and jars(), HOW)
    served = S3Server(tmp_path_factory.mktemp("s3") / "buckets")
    served.start()
    try:
        yield served
    finally:
        served.stop()


@pytest.fixture
def s3(running_s3: "S3Server", monkeypatch: pytest.MonkeyPatch) -> "S3Server":
    """Give an S3 server, which clients of AWS in this process find by the environment."""
    for name, value in running_s3.variables.items():
        monkeypatch.setenv(name, value)
    return running_s3


@pytest.fixture
def bucket(s3: "S3Server") -> str:
    """Return the URL of an empty bucket on that server."""
    return s3.bucket(f"bucket-{uuid.uuid4()}")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Return the URL of a database of this worker, with the schema and a clock that the test moves."""
    from tests.store.postgres_host import serving  # noqa: PLC0415

    with serving() as url:
        yield url


@pytest.fixture(scope="session")
def shard_urls(postgres_url: str) -> Iterator[list[str]]:
    """Return the URLs of two databases of this worker that can be one store."""
    from tests.store.postgres_host import making_shards  # noqa: PLC0415

    with making_shards(postgres_url) as urls:
        yield urls


@pytest.fixture(scope="session")
def whole_browser() -> "Iterator[Browser]":
    """Give the browser of this process, which takes a second to start; its event loop is out of sight."""
    from tests.console.conftest import launched  # noqa: PLC0415

    with launched() as browser:
        yield browser


@pytest.fixture
def new_database(postgres_url: str) -> Iterator[str]:
    """Return the URL of an empty database, without a schema; its clock will be the real one."""
    from tests.store.postgres_host import making_database  # noqa: PLC0415

    with making_database(postgres_url) as url:
        yield url


@pytest.fixture
def server_on_postgres(postgres_url: str) -> "Iterator[RunningServer]":
    """Give a server on an emptied database; the test moves the clock of both."""
    from tests.store.postgres_host import serving_from  # noqa: PLC0415

    with serving_from(postgres_url) as running:
        yield running


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> "Callable[[str], dict[str, Any]]":
    """Return a call that gives the settings of a `RunningServer` on a "memory", a "folder" or "postgres", empty."""

    def settings(store: str) -> dict[str, Any]:
        if store != "postgres":
            return {"data": tmp_path / "store" if store == "folder" else None}
        from tests.store.postgres_host import emptied  # noqa: PLC0415

        return emptied(request.getfixturevalue("postgres_url"))

    return settings


@pytest.fixture
def start_node(new_database: str, tmp_path: Path) -> "Iterator[StartNode]":
    """Give a call that starts one more `veilmq serve` process on a database of the test's own, in real time."""
    from tests.proofs.served import starting_nodes  # noqa: PLC0415

    with starting_nodes(new_database, tmp_path) as start:
        yield start


@pytest.fixture
def server() -> "Iterator[RunningServer]":
    """Give a server in memory whose clock the test moves. A folder whose tests need another one has its own."""
    from veilmq.testing import RunningServer  # noqa: PLC0415

    with RunningServer() as running:
        yield running


@pytest.fixture
def client(server: "RunningServer") -> "Iterator[HttpQueueClient]":
    """Give a client of `server`; there are no queues yet."""
    from veilmq.client import HttpQueueClient  # noqa: PLC0415

    with HttpQueueClient(server.endpoint) as connected:
        yield connected


@pytest.fixture
def bench() -> "Iterator[Workbench]":
    """Give a server with a queue for dead letters, `dead`, and a client of it, for consumers at work."""
    from tests.consumer.workbench import workbench  # noqa: PLC0415

    with workbench() as made:
        made.client.create_queue("dead")
        yield made


@pytest.fixture
def receiver() -> "Iterator[Receiver]":
    """Give a receiver of pushes that accepts everything, and outlives the server."""
    from tests.server.push_receiver import receiving  # noqa: PLC0415

    with receiving() as listening:
        yield listening


def stores_of(item: pytest.Item) -> set[str]:
    """Return the parameters of a test that are words, among them the stores on which it runs."""
    call = getattr(item, "callspec", None)
    return set() if call is None else {each for each in call.params.values() if isinstance(each, str)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder and by fixture, so that no test lacks its marks: `proof`, `service`, `everything`, `slow`.

    All tests on Spark are slow, and run in one of the workers, so that there is one session. What needs an S3 server
    runs in `make test-all` only. PostgreSQL and the browser are services.
    """
    for item in items:
        if SERVED & {*getattr(item, "fixturenames", ()), *stores_of(item)}:
            item.add_marker(pytest.mark.service)
        if item.path.parent in PROOFS:
            item.add_marker(pytest.mark.proof)
        for fixture in MARKS.keys() & set(getattr(item, "fixturenames", ())):
            for mark in MARKS[fixture]:
                item.add_marker(mark)
        if "running_s3" in getattr(item, "fixturenames", ()):
            item.add_marker(EVERYTHING)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own, within the asynchronous contexts that it is given."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def run() -> None:
        async with contextlib.AsyncExitStack() as entered:
            for name, given in arguments.items():
                if isinstance(given, contextlib.AbstractAsyncContextManager):
                    arguments[name] = await entered.enter_async_context(given)
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run `item` on the floor that the workers share, alone if it is marked `serial`."""
    if not hasattr(item.config, "workerinput"):  # no other worker
        return (yield)
    assert item.config.cache is not None
    locks = item.config.cache.mkdir("floor")
    with floor(locks, alone=item.get_closest_marker("serial") is not None):
        return (yield)


@contextlib.contextmanager
def floor(locks: Path, *, alone: bool) -> Iterator[None]:
    """Hold the floor, with the other holders or `alone`; `locks` is the folder of the two lock files."""
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    with (locks / "gate").open("a") as gate, (locks / "floor").open("a") as held:
        with holding(gate, kind):
            fcntl.flock(held, kind)
        try:
            yield
        finally:
            fcntl.flock(held, fcntl.LOCK_UN)


@contextlib.contextmanager
def holding(lock: IO[str], kind: int) -> Iterator[None]:
    """Hold `lock` in the way of `kind`; unlocks by call, as a forked child may keep the file open."""
    fcntl.flock(lock, kind)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
