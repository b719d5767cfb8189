"""What is between a node and its server: it passes everything on, or nothing, or ends instead of the next answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

_CHUNK = 65_536


class Proxy:
    """On a port of this machine; `url` is that of the server behind it."""

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
            while data := await source.read(_CHUNK):
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
