"""veilmq's own HTTP class with a handler that returns a constant: the cost of HTTP without a queue.

Everything else is the server's: the class, its limits, the date in each reply, the table of connections with deadlines.
"""

import argparse
import asyncio

import uvloop

from veilmq.server.http import Connections
from veilmq.server.http_parser import Pending, Request

HEADERS = b"Content-Type: application/x-amz-json-1.0\r\n"


def answer(request: Request) -> Pending | None:
    """Reply to any request at once."""
    request.respond(200, HEADERS, b"{}")
    return None


async def serve(*, port: int) -> None:
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
