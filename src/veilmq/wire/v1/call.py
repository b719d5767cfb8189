"""What a route makes of a request: the command, and the way from its result to the reply."""

from collections.abc import Callable
from typing import Any

import msgspec

from veilmq.core.commands import Command
from veilmq.core.errors import VeilmqError
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.reply import Reply
from veilmq.wire.v1.errors import encode_error, encode_failure, json_reply


def as_json(result: Any) -> Reply:
    """Answer with ``result``, a struct without ids, as a JSON object; with an empty one for ``None``."""
    return json_reply(200, {} if result is None else result)


class ApiCall(msgspec.Struct, frozen=True, gc=False):
    """A request that was understood; see ``wire.sqs.call.Call``. ``answer`` encodes a result that is no error."""

    command: Command
    answer: Callable[[Any], Reply] = as_json
    wait_s: int | None = 0

    def encode(self, result: Any) -> Reply:
        """Return the reply for the command's result, its ``VeilmqError``, or the ``SqsError`` of a body read later."""
        if isinstance(result, VeilmqError):
            return encode_failure(result)
        return encode_error(result) if isinstance(result, SqsError) else self.answer(result)
