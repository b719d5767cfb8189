"""Clients that flood a server on 127.0.0.1, and measured clients beside them; each kind is a process.

`python -m tests.proofs.flooding KIND PORT SECONDS CONNECTIONS [SIGNED_REQUEST...]` prints figures as a JSON object.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HOST = "127.0.0.1"
BODY_BYTES = 8 * 1_048_576
PIECE = b"x" * 65_536
CONNECTIONS_MAX = 200
SECONDS_MAX = 120.0
PATIENCE_S = 60.0


async def flood(port: int, until_s: float, head: bytes, *, reads: bool) -> int:
    """Send `head` and a body of 8 MiB repeatedly, each on a new connection; return how often."""
    sent = 0
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                async with asyncio.timeout(max(0.1, until_s - time.monotonic())):
                    writer.write(head)
                    for _ in range(BODY_BYTES // len(PIECE)):
                        writer.write(PIECE)
                        await writer.drain()
                    if reads:
                        await reader.readuntil(b"\r\n\r\n")
            finally:
                writer.transport.abort()
        sent += 1
        await asyncio.sleep(0.01)
    return sent


async def receive_without_reading(port: int, until_s: float, request: bytes) -> int:
    """Pipeline receives until the server stops reading; read no reply. Return the number of requests."""
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connected.connect((HOST, port))
    connected.setblocking(False)
    loop = asyncio.get_running_loop()
    sent = 0
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(max(0.1, until_s - time.monotonic())):
            while True:
                await loop.sock_sendall(connected, request * 64)
                sent += 64
    connected.close()
    return sent


def large_head(authorization: bytes = b"") -> bytes:
    return (
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-amz-json-1.0\r\n"
        b"X-Amz-Target: AmazonSQS.SendMessage\r\n" + authorization + b"Content-Length: %d\r\n\r\n" % BODY_BYTES
    )


def invalid_signature() -> bytes:
    """Return the headers of a request by a known key with an invalid signature."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()).encode()
    return (
        b"X-Amz-Date: %b\r\nAuthorization: AWS4-HMAC-SHA256 Credential=AKIDOWNER/%b/us-east-1/sqs/aws4_request, "
        b"SignedHeaders=host;x-amz-date;x-amz-target, Signature=%b\r\n" % (now, now[:8], b"0" * 64)
    )


class Connection:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def request(self, request: bytes) -> tuple[int, float]:
        began_s = time.perf_counter()
        self._socket.sendall(request)
        status = int(self._file.readline().split()[1])
        length = 0
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.lower().partition(b":")
            length = int(value) if name == b"content-length" else length
        self._file.read(length)
        return status, time.perf_counter() - began_s

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def repeat(
    port: int, until_s: float, requests: Sequence[bytes], pause_s: float, *, anew: bool = False
) -> dict[str, float]:
    """Send requests in turn on one connection, or each on a new one; return count, failures and the longest time."""
    connection, count, failed, longest_s = Connection(port), 0, 0, 0.0
    while time.monotonic() < until_s:
        for request in requests:
            status, taken_s = connection.request(request)
            count, failed, longest_s = count + 1, failed + (status != 200), max(longest_s, taken_s)
            if anew or status == 503:
                connection.close()
                connection = Connection(port)
        time.sleep(pause_s)
    return {"count": count, "failed": failed, "longest_ms": longest_s * 1_000}


def sync(until_s: float, folder: Path) -> dict[str, float]:
    """Write and sync a page repeatedly; return how often, and the longest time: the cost of the disk alone."""
    count, longest_s = 0, 0.0
    with (folder / "page").open("wb", buffering=0) as file:
        while time.monotonic() < until_s:
            began_s = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4_096), 0)
            os.fdatasync(file.fileno())
            count, longest_s = count + 1, max(longest_s, time.perf_counter() - began_s)
            time.sleep(0.01)
    return {"count": count, "longest_ms": longest_s * 1_000}


async def all_of(kind: str, port: int, until_s: float, connections: int, request: bytes) -> dict[str, float]:
    if kind == "unread":
        flows = [receive_without_reading(port, until_s, request) for _ in range(connections)]
    else:
        head = large_head(invalid_signature() if kind == "wrong" else b"")
        flows = [flood(port, until_s, head, reads=True) for _ in range(connections)]
    return {"count": sum(await asyncio.gather(*flows))}


def main() -> None:
    kind, port, seconds, connections, *files = sys.argv[1:]
    assert int(connections) <= CONNECTIONS_MAX
    assert float(seconds) <= SECONDS_MAX
    until_s = time.monotonic() + float(seconds)
    requests = [Path(file).read_bytes() for file in files if kind != "disk"]
    if kind == "disk":
        figures = sync(until_s, Path(files[0]))
    elif kind == "repeat":
        figures = repeat(int(port), until_s, requests, pause_s=0.0)
    elif kind == "anew":
        figures = repeat(int(port), until_s, requests, pause_s=0.1, anew=True)
    elif kind == "probe":
        figures = repeat(int(port), until_s, requests, pause_s=0.01)
    else:
        figures = asyncio.run(all_of(kind, int(port), until_s, int(connections), b"".join(requests)))
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
