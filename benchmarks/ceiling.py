"""The ceiling: the least work that a Python server on this machine can do per request.

uvloop handles the sockets, httptools parses, and the only parser callback, `on_message_complete`, writes a constant
reply with a body of two bytes. No header or body is read. Figures of real servers are shown as a share of this one,
under the same load script in the same run.
"""

import argparse
import asyncio
from typing import cast

import httptools
import uvloop

REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: 2\r\n\r\n{}"


class Ceiling(asyncio.Protocol):
    """One keep-alive connection that answers every complete request with `REPLY`."""

    __slots__ = ("_parser", "_transport")

    _parser: httptools.HttpRequestParser
    _transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(REPLY)


async def serve(*, port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Ceiling, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ceiling", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(port=parser.parse_args().port))


if __name__ == "__main__":
    main()
