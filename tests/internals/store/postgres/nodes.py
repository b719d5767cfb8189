"""Two nodes on one database with one virtual clock; and a proxy between a node and its server."""

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

_TERMINATE_LISTENERS = """
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
        self._received: list[Notification] = []
        self._calls = 0
        host.run(self._listen())
        self.until(
            lambda: {each.watches.notifications_arrive for each in (self.first, self.other)} == {options.listens}
        )
        self.advance(SEND_INTERVAL_MS)

    def watch(self, queue: str = QUEUE) -> None:
        self.other.watch(queue, self.woken_ms.append)
        self.advance(SEND_INTERVAL_MS)
        self.until(lambda: self.first.watches.is_awaited(queue))
        self.advance(FIRST_POLL_MS)  # the poll after the announcement finds nothing
        self.woken_ms.clear()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` holds: the server needs a moment to deliver notifications."""

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():  # noqa: ASYNC110 - the event arrives by a socket
                    await asyncio.sleep(0)

        self.host.run(wait())

    def advance(self, time_ms: int) -> None:
        self.host.advance(time_ms)
        self.host.run(self.other.drain())

    def do_at_other(self, command: Command) -> Any:
        return self.host.run(execute(self.other, command))

    def take_sent(self, kind: str = "due") -> list[Notification]:
        """Return the notifications of a kind that the first node has sent since the last call."""
        mark = f"mark/{self._calls}"
        self._calls += 1
        self.host.in_loop(lambda: self.first.watches.changed(mark))
        self.advance(SEND_INTERVAL_MS)
        self.until(lambda: any(each.queue == mark for each in self._received))
        received, self._received = self._received, []
        return [each for each in received if (each.node, each.kind) == (self.first.watches.name, kind)]

    def terminate_listeners(self) -> None:
        async def end() -> None:
            await self._ear.execute(_TERMINATE_LISTENERS)

        self.host.run(end())

    async def _listen(self) -> None:
        self._ear = await asyncpg.connect(self.host.url)
        await self._ear.add_listener("veilmq", self._on_notification)

    def _on_notification(self, connection: Any, pid: int, name: str, text: Any) -> None:
        self._received.append(decode_notification(text))

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
    """Forwards all data, or drops it, or closes a connection instead of its next reply."""

    def __init__(self, server_url: str) -> None:
        (folder,) = parse_qs(urlsplit(server_url).query)["host"]
        self._socket = f"{folder}/.s.PGSQL.5432"
        self.url = ""
        self.drops_all = False  # in both directions; connections stay open
        self.drops_reply = False  # the next reply, and its connection

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until either end closes it."""
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        try:
            requests = asyncio.ensure_future(self._pump(reader, to_server, is_reply=False))
            replies = asyncio.ensure_future(self._pump(from_server, writer, is_reply=True))
            _, left = await asyncio.wait((requests, replies), return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
        finally:
            writer.transport.abort()
            to_server.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_reply: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                if is_reply and self.drops_reply:
                    self.drops_reply = False
                    return
                if not self.drops_all:
                    target.write(data)


@contextlib.asynccontextmanager
async def running_proxy(server_url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(server_url)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    async with server:
        yield proxy
