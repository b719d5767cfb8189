"""What a route makes of a request: the command for the engine, and the way from its result to the reply."""

from collections.abc import Callable
from typing import Any

import msgspec

from veilmq.core.commands import Command
from veilmq.core.errors import VeilmqError
from veilmq.wire.smq.errors import from_core


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Status and body of a reply; ``location`` is the URL of what was made or found, ``code`` an error's name.

    The body is a whole document (``xml_writing.document``), empty where there is none.
    """

    status: int
    body: bytes = b""
    location: str = ""
    code: str = "OK"


NO_CONTENT = Answer(204)
"""Done, and nothing to say."""

Respond = Callable[[Any], Answer]
"""Result or ``VeilmqError`` of the command → answer; raises ``SmqError``."""


class Plan(msgspec.Struct, frozen=True, gc=False):
    """``wait_s`` is how long an empty receive may wait, ``None`` for as long as the queue says."""

    command: Command
    respond: Respond
    wait_s: int | None = 0


def answered(result: Any) -> Any:
    """Return ``result``; raises the ``SmqError`` for a ``VeilmqError``."""
    if isinstance(result, VeilmqError):
        raise from_core(result)
    return result


def only(results: Any) -> Any:
    """Return the outcome of a command that had one entry; raises the ``SmqError`` for a ``VeilmqError``."""
    return answered(answered(results)[0])


def nothing(result: Any) -> Answer:
    """Answer with no content; raises the ``SmqError`` for a ``VeilmqError``."""
    answered(result)
    return NO_CONTENT
