"""A ``QueueClient`` through a boto3 client that the user brings, with its credentials, region, proxies and retries.

Only this module knows boto3, and nobody imports it who has none: ``BotoQueueClient(boto3.client("sqs"))``. A boto3
client may be shared by threads.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from botocore import xform_name
from botocore.exceptions import BotoCoreError
from botocore.exceptions import ClientError as Refused

from veilmq.client.errors import ClientError, Unreachable
from veilmq.client.sqs import SqsQueueClient
from veilmq.client.transport import UNEXPECTED_REPLY, Reply

_UNKNOWN = "Unknown"


class BotoCaller:
    """Carries calls through a boto3 client of SQS."""

    def __init__(self, boto: Any) -> None:
        """``boto`` is what ``boto3.client("sqs")`` returns."""
        self._boto = boto

    def call(
        self,
        action: str,
        request: msgspec.Struct,
        reply_type: type[Reply],
        *,
        wait_s: int = 0,
        patience_s: float | None = None,
    ) -> Reply:
        """Ask for ``action`` and return the answer; raises ``ClientError`` and ``Unreachable``.

        How long it waits, and what it tries again, is the boto3 client's own configuration: neither ``wait_s`` nor
        ``patience_s`` has a say.
        """
        parameters: Mapping[str, Any] = msgspec.to_builtins(request, builtin_types=(bytes,))
        method: Callable[..., Any] = getattr(self._boto, xform_name(action))
        try:
            answer = method(**{name: value for name, value in parameters.items() if value is not None})
        except Refused as refused:
            raise _error(refused) from refused
        except BotoCoreError as error:
            raise Unreachable(self._boto.meta.endpoint_url, str(error)) from error
        try:
            return msgspec.convert(answer, reply_type, builtin_types=(bytes,))
        except msgspec.ValidationError as error:
            raise ClientError(UNEXPECTED_REPLY, f"The answer is not that of a queue server: {error}.", 200) from error

    def hang_up(self) -> None:
        """Leave the connections alone: they are not ours, and what waits is answered in its time."""

    def close(self) -> None:
        """Leave the connections alone: the boto3 client is the user's."""


class BotoQueueClient(SqsQueueClient):
    """A client through a boto3 client of SQS; closing it leaves that one open. Threads may share it."""

    def __init__(self, boto: Any) -> None:
        """``boto`` is what ``boto3.client("sqs")`` returns."""
        super().__init__(BotoCaller(boto))


def _error(refused: Refused) -> ClientError:
    error = refused.response.get("Error", {})
    code = error.get("QueryErrorCode") or error.get("Code") or _UNKNOWN  # the former is the name of the exception
    status = refused.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    return ClientError(code.rpartition("#")[2], error.get("Message", ""), status)
