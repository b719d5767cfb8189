"""A ``QueueClient`` over a boto3 client of the user: ``BotoQueueClient(boto3.client("sqs"))``.

Only this module imports botocore.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from botocore import xform_name
from botocore.exceptions import BotoCoreError
from botocore.exceptions import ClientError as BotoClientError

from veilmq.client.messages import ClientError, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.client.transport import UNEXPECTED_REPLY, Reply

_UNKNOWN = "Unknown"


class BotoQueueClient(QueueClient):
    """A client over a boto3 client of SQS, with its credentials, region, proxies, timeouts and retries.

    Threads may share it. Closing it does not close the boto3 client.
    """

    def __init__(self, boto: Any) -> None:
        self._boto = boto
        self._call = self._call_boto
        self._urls = {}

    def hang_up(self) -> None:
        """Do nothing: the connections belong to the boto3 client."""

    def close(self) -> None:
        """Do nothing: the boto3 client belongs to the user."""

    def dead_letter(self, queue: str, receipt: str, target: str, reasons: Mapping[str, str]) -> bool:
        """Return false: boto3 supports only the actions of Amazon SQS."""
        return False

    def _call_boto(
        self,
        action: str,
        members: Mapping[str, Any],
        reply_type: type[Reply],
        *,
        wait_s: int = 0,
        call_timeout_s: float | None = None,
    ) -> Reply:
        """Like ``Transport.call``; ``wait_s`` and ``call_timeout_s`` have no effect."""
        method: Callable[..., Any] = getattr(self._boto, xform_name(action))
        try:
            reply = method(**msgspec.to_builtins(members, builtin_types=(bytes,)))
        except BotoClientError as refused:
            error = refused.response.get("Error", {})
            code = error.get("QueryErrorCode") or error.get("Code") or _UNKNOWN  # the name of the exception, if present
            status = refused.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
            raise ClientError(code.rpartition("#")[2], error.get("Message", ""), status) from refused
        except BotoCoreError as failed:
            raise Unreachable(self._boto.meta.endpoint_url, str(failed)) from failed
        try:
            return msgspec.convert(reply, reply_type, builtin_types=(bytes,))
        except msgspec.ValidationError as misfit:
            raise ClientError(UNEXPECTED_REPLY, f"The reply is not that of a queue server: {misfit}.", 200) from misfit
