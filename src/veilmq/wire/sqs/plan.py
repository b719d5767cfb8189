"""What an action makes of a request: the command for the engine, and the way from its result to the reply.

This is where protocols meet. A codec turns bytes into a request, the action's row turns the request into a ``Plan``,
and the codec turns the response into bytes.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from veilmq.core.commands import Command
from veilmq.core.errors import VeilmqError
from veilmq.wire.sqs.errors import from_core
from veilmq.wire.sqs.shapes import Shape

Respond = Callable[[Any], Shape | None]
"""Result or ``VeilmqError`` of the command → response, ``None`` for an empty one; raises ``SqsError``."""


class Plan(msgspec.Struct, frozen=True, gc=False):
    """``wait_s`` is how long an empty receive may wait, ``None`` for as long as the queue says."""

    command: Command
    respond: Respond
    wait_s: int | None = 0


def answered(result: Any) -> Any:
    """Return ``result``; raises the ``SqsError`` for a ``VeilmqError``."""
    if isinstance(result, VeilmqError):
        raise from_core(result)
    return result


def only(results: Any) -> Any:
    """Return the outcome of a command that had one entry; raises the ``SqsError`` for a ``VeilmqError``."""
    outcome = results if isinstance(results, VeilmqError) else results[0]
    if isinstance(outcome, VeilmqError):
        raise from_core(outcome)
    return outcome


def nothing(result: Any) -> None:
    """Respond with an empty object; raises the ``SqsError`` for a ``VeilmqError``."""
    answered(result)
