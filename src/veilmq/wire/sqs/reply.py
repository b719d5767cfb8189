"""What goes back to the client, ready to be written."""

import msgspec


class Reply(msgspec.Struct, frozen=True, gc=False):
    """Status, headers as pairs of bytes (the server adds its own, such as Content-Length) and the body."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
