"""What goes back to the client, ready to be written."""

import msgspec


class Reply(msgspec.Struct, frozen=True, gc=False):
    """Status, headers as whole lines with their line ends (the server adds its own), body, and the error's name."""

    status: int
    headers: bytes
    body: bytes
    code: str = "OK"
