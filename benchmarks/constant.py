"""veilmq's own HTTP class with a handler that answers a constant: what HTTP costs before any queue is asked.

Everything else is the server's: the class, its limits, the date in each reply, the table of connections with its
deadlines.
"""

import argparse
import asyncio

import uvloop

from veilmq.server.http import Connections
from veilmq.server.http_parser import Pending, Request

HEADERS = b"Content-Type: application/x-amz-json-1.0\r\n"


def answer(request: Request) -> Pending | None:
    """Answer at once, whatever was asked."""
    request.respond(200, HEADERS, b"{}")
    return None


async def serve(*, port: int) -> None:
    """Listen on loopback until the process is ended."""
    loop = asyncio.get_running_loop()
    connections = Connections(handler=answer)
    server = await loop.create_server(connections.protocol, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constant", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(port=parser.parse_args().port))


if __name__ == "__main__":
    main()
