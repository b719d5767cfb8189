"""Fixtures and marks for all tests.

A test marked `serial` measures time, memory or processor use and must run alone. All workers share two locks: each
test holds `floor` shared, a serial test exclusively. A serial test also holds `gate` while it waits, so that later
tests cannot overtake it. The wait does not count towards the timeout of the test.
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
import urllib3
from hypothesis import HealthCheck, Phase, settings

from veilmq.pipeline.session import has_java

if TYPE_CHECKING:  # these imports take half a second
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
settings.register_profile("unshrunk", parent=settings.get_profile("untimed"), phases=set(Phase) - {Phase.shrink})
settings.load_profile("untimed")
TEST_ALL = TESTS.parent / ".venv-test-all"  # the environment of `make test-all`: Airflow and DuckDB, without Spark
EVERYTHING = pytest.mark.everything  # runs in `make test-all` only: a variant of another test, or needs an S3 server
SERVED = frozenset({"postgres", "shards", "postgres_url", "whole_browser"})  # services, not started by `make test-fast`
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30  # more than the temporary folders of all tests take
MARKS = {  # fixture → the marks of its tests; a group runs in one worker, which starts the service once
    "browser": (pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)),
    "serve": (pytest.mark.xdist_group("stories"),),
    "spark": (pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)),
}


def pytest_configure() -> None:
    """Use temporary folders in memory if there is room, and give replies to urllib3.request a minute, not 3 seconds.

    No test depends on the speed of a disk or a reply.
    """
    urllib3.request.__kwdefaults__ = {**(urllib3.request.__kwdefaults__ or {}), "timeout": 60}
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def in_ci() -> bool:
    """Return whether this is a CI run: `CI` is set to something other than 0 or false."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def need(condition: object, what: str) -> None:
    """Skip the test, or fail it in CI, unless `condition` holds; `what` says how to install what is missing."""
    if condition:
        return
    if in_ci():
        pytest.fail(f"needs {what}; CI must have it", pytrace=False)
    pytest.skip(f"needs {what}")


def need_java() -> None:
    need(has_java(), "Java 17 or newer (scripts/install-java.sh)")


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the database lists of servers on PostgreSQL in a temporary folder."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """Yield the Spark session of this process, which takes seconds to start."""
    need_java()
    from tests.spark.session import session  # noqa: PLC0415

    with session(tmp_path_factory.mktemp("spark")) as running:
        yield running


@pytest.fixture(scope="session")
def running_s3(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[S3Server]":
    from tests.bucket import GATEWAY, HOW, S3Server, jars  # noqa: PLC0415

    need(GATEWAY.exists() and jars(), HOW)
    with S3Server(tmp_path_factory.mktemp("s3") / "buckets") as served:
        yield served


@pytest.fixture
def s3(running_s3: "S3Server", monkeypatch: pytest.MonkeyPatch) -> "S3Server":
    """Return the S3 server; AWS clients in this process find it by the environment."""
    for name, value in running_s3.variables.items():
        monkeypatch.setenv(name, value)
    return running_s3


@pytest.fixture
def bucket(s3: "S3Server") -> str:
    return s3.bucket(f"bucket-{uuid.uuid4()}")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Yield the URL of this worker's database, with the schema and a clock that the test sets."""
    from tests.store.postgres_host import serving  # noqa: PLC0415

    with serving() as url:
        yield url


@pytest.fixture(scope="session")
def shard_urls(postgres_url: str) -> Iterator[list[str]]:
    """Yield the URLs of two databases of this worker that can form one store."""
    from tests.store.postgres_host import making_shards  # noqa: PLC0415

    with making_shards(postgres_url) as urls:
        yield urls


@pytest.fixture(scope="session")
def whole_browser() -> "Iterator[Browser]":
    """Yield the browser of this process, which takes a second to start; its event loop is hidden."""
    from tests.console.conftest import launched  # noqa: PLC0415

    with launched() as browser:
        yield browser


@pytest.fixture
def new_database(postgres_url: str) -> Iterator[str]:
    """Yield the URL of an empty database without schema and test clock."""
    from tests.store.postgres_host import making_database  # noqa: PLC0415

    with making_database(postgres_url) as url:
        yield url


@pytest.fixture
def server_on_postgres(postgres_url: str) -> "Iterator[RunningServer]":
    """Yield a server on an emptied database; the test moves the clock of both."""
    from tests.store.postgres_host import serving_from  # noqa: PLC0415

    with serving_from(postgres_url) as running:
        yield running


@pytest.fixture
def store_settings(request: pytest.FixtureRequest, tmp_path: Path) -> "Callable[[str], dict[str, Any]]":
    """Return a function that returns the settings of a `RunningServer` on an empty "memory", "folder" or "postgres"."""

    def settings(store: str) -> dict[str, Any]:
        if store != "postgres":
            return {"data": tmp_path / "store" if store == "folder" else None}
        from tests.store.postgres_host import emptied  # noqa: PLC0415

        return emptied(request.getfixturevalue("postgres_url"))

    return settings


@pytest.fixture
def start_node(new_database: str, tmp_path: Path) -> "Iterator[StartNode]":
    """Yield a function that starts a `veilmq serve` process on one new database, in real time."""
    from tests.proofs.served import starting_nodes  # noqa: PLC0415

    with starting_nodes(new_database, tmp_path) as start:
        yield start


@pytest.fixture
def server() -> "Iterator[RunningServer]":
    """Yield a server in memory whose clock the test moves; some folders replace this fixture."""
    from veilmq.testing import RunningServer  # noqa: PLC0415

    with RunningServer() as running:
        yield running


@pytest.fixture
def client(server: "RunningServer") -> "Iterator[HttpQueueClient]":
    from veilmq.client import HttpQueueClient  # noqa: PLC0415

    with HttpQueueClient(server.endpoint) as connected:
        yield connected


@pytest.fixture
def bench() -> "Iterator[Workbench]":
    """Yield a server with a dead-letter queue, `dead`, and its client, for running consumers."""
    from tests.consumer.workbench import workbench  # noqa: PLC0415

    with workbench() as made:
        made.client.create_queue("dead")
        yield made


@pytest.fixture
def receiver() -> "Iterator[Receiver]":
    """Yield a push receiver that accepts everything; it outlives the server."""
    from tests.server.push_receiver import receiving  # noqa: PLC0415

    with receiving() as listening:
        yield listening


def stores_of(item: pytest.Item) -> set[str]:
    """Return the string parameters of a test, among them its stores."""
    call = getattr(item, "callspec", None)
    return set() if call is None else {each for each in call.params.values() if isinstance(each, str)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by folder and fixture: `proof`, `service`, `everything`, `slow`."""
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
    """Run a coroutine test in its own event loop, within the asynchronous context managers among its fixtures."""
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
    """Run `item` while holding the floor, alone if it is marked `serial`."""
    if not hasattr(item.config, "workerinput"):  # no other worker
        return (yield)
    assert item.config.cache is not None
    locks = item.config.cache.mkdir("floor")
    with floor(locks, alone=item.get_closest_marker("serial") is not None):
        return (yield)


@contextlib.contextmanager
def floor(locks: Path, *, alone: bool) -> Iterator[None]:
    """Hold the floor, shared or `alone`; `locks` is the folder of the two lock files."""
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
    """Lock `lock`; unlock it explicitly, as a forked child may keep the file open."""
    fcntl.flock(lock, kind)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
