"""One request over one connection: to addresses that were looked at before, and no other.

Nothing of the answer counts but its status: a redirection is a status as any other, and its body is not read. No proxy
is asked, whatever the environment says.
"""

import asyncio
import re
import ssl

from veilmq.server.pushing.guard import Target

_HEAD_BYTES_MAX = 65_536
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")
_FINAL = 200


class NoAnswer(Exception):
    """The receiver could not be reached, or answered no HTTP; ``str()`` says what happened."""


async def post(target: Target, request: bytes, *, tls: ssl.SSLContext) -> int:
    """Return the status with which ``target`` answers ``request``; raises ``NoAnswer``. Cancel it to end it."""
    reader, writer = await _connect(target, tls)
    try:
        writer.write(request)
        return await _status(reader)
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        raise NoAnswer(f"the connection ended without an answer: {error}") from None
    finally:
        writer.transport.abort()


async def _connect(target: Target, tls: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of the addresses where that is possible."""
    url, problem = target.url, ""
    for address in target.addresses:
        try:
            return await asyncio.open_connection(
                str(address),
                url.port,
                limit=_HEAD_BYTES_MAX,
                ssl=tls if url.secure else None,
                server_hostname=url.host if url.secure else None,
            )
        except OSError as error:  # those of TLS are, too
            problem = f"no connection to {address}: {error.strerror or error}"
    raise NoAnswer(problem)


async def _status(reader: asyncio.StreamReader) -> int:
    """Return the final status; those before it only say that the receiver is at it."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        match = _STATUS.match(head)
        if match is None:
            raise NoAnswer("the answer is no HTTP")
        status = int(match[1])
        if status >= _FINAL:
            return status
