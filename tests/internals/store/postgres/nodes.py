"""Two nodes on one database and one virtual clock; and what may be between a node and its server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg

from tests.store.host import QUEUE
from tests.store.postgres_host import RESTLESS, PostgresHost, hosting_postgres, open_engine
from veilmq.core.commands import Command
from veilmq.store.port import execute
from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.postgres.wakeups import FIRST_POLL_MS, SEND_INTERVAL_MS, Notification, decode_notification

PATIENCE_S = 60

_END_LISTENERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND (query LIKE 'LISTEN%' OR query LIKE 'SELECT pg_notify%')
"""


class TwoNodes:
    """`host` runs commands at the first node; `other` is the second one."""

    def __init__(self, host: PostgresHost, options: PostgresOptions) -> None:
        self.host = host
        self.first: Any = host.engine
        self.other: PostgresEngine = host.run(open_engine(host.url, clock=host.clock, options=options))
        self.woken_ms: list[int] = []
        self._heard: list[Notification] = []
        self._calls = 0
        host.run(self._listen())
        self.until(lambda: {each.watches.receives for each in (self.first, self.other)} == {options.listens})
        self.advance(SEND_INTERVAL_MS)

    def watch(self, queue: str = QUEUE) -> None:
        self.other.watch(queue, self.woken_ms.append)
        self.advance(SEND_INTERVAL_MS)
        self.until(lambda: self.first.watches.is_awaited(queue))
        self.advance(FIRST_POLL_MS)  # the look that follows finds nothing new
        self.woken_ms.clear()

    def until(self, condition: Callable[[], object]) -> None:
        """Return when `condition` holds: what the server passes on takes a moment."""

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():  # noqa: ASYNC110 - it comes by a socket, and nobody tells of it
                    await asyncio.sleep(0)

        self.host.run(wait())

    def advance(self, time_ms: int) -> None:
        self.host.advance(time_ms)
        self.host.run(self.other.drain())

    def do_there(self, command: Command) -> Any:
        return self.host.run(execute(self.other, command))

    def told(self, what: str = "due") -> list[Notification]:
        """Return what the first node has said of that since the last call."""
        mark = f"mark/{self._calls}"
        self._calls += 1
        self.host.in_loop(lambda: self.first.watches.changed(mark))
        self.advance(SEND_INTERVAL_MS)
        self.until(lambda: any(notice.queue == mark for notice in self._heard))
        heard, self._heard = self._heard, []
        return [notice for notice in heard if (notice.node, notice.kind) == (self.first.watches.name, what)]

    def end_notices(self) -> None:
        async def end() -> None:
            await self._ear.execute(_END_LISTENERS)

        self.host.run(end())

    async def _listen(self) -> None:
        self._ear = await asyncpg.connect(self.host.url)
        await self._ear.add_listener("veilmq", self._hear)

    def _hear(self, connection: Any, pid: int, name: str, text: Any) -> None:
        self._heard.append(decode_notification(text))

    def close(self) -> None:
        self.host.run(self._ear.close())
        self.host.run(self.other.close())


@contextlib.contextmanager
def two_nodes(url: str, *, options: PostgresOptions = RESTLESS) -> Iterator[TwoNodes]:
    with hosting_postgres(url, options=options) as host:
        nodes = TwoNodes(host, options)
        try:
            yield nodes
        finally:
            nodes.close()


class Proxy:
    """Passes everything on, or nothing, or ends instead of the next answer; `url` is that of the server behind it."""

    def __init__(self, server_url: str) -> None:
        (folder,) = parse_qs(urlsplit(server_url).query)["host"]
        self._socket = f"{folder}/.s.PGSQL.5432"
        self.url = ""
        self.swallows = False
        """Whether nothing is passed on any more, in either direction, while connections stay."""
        self.cuts = False
        """Whether the next answer ends its connection instead; those after it are passed on."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on until an end of it closes."""
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        try:
            asked = asyncio.ensure_future(self._pump(reader, to_server, answers=False))
            answered = asyncio.ensure_future(self._pump(from_server, writer, answers=True))
            _, left = await asyncio.wait((asked, answered), return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
        finally:
            writer.transport.abort()
            to_server.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                if answers and self.cuts:
                    self.cuts = False
                    return
                if not self.swallows:
                    target.write(data)


@contextlib.asynccontextmanager
async def passing(server_url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(server_url)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    async with server:
        yield proxy
