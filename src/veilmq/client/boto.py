"""A ``QueueClient`` through a boto3 client that the user brings, with its credentials, region, proxies and retries.

Only this module imports boto3: ``BotoQueueClient(boto3.client("sqs"))``. A boto3
client may be shared by threads.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from botocore import xform_name
from botocore.exceptions import BotoCoreError
from botocore.exceptions import ClientError as Refused

from veilmq.client.messages import ClientError, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.client.transport import UNEXPECTED_REPLY, Reply

_UNKNOWN = "Unknown"


class BotoQueueClient(QueueClient):
    """A client through a boto3 client of SQS; closing it leaves that one open. Threads may share it.

    Timeouts and retries are the boto3 client's own configuration.
    """

    def __init__(self, boto: Any) -> None:
        """``boto`` is what ``boto3.client("sqs")`` returns."""
        self._boto = boto
        self._call = self._call_boto
        self._urls = {}

    def hang_up(self) -> None:
        """Do nothing: the connections belong to the boto3 client."""

    def close(self) -> None:
        """Do nothing: the boto3 client belongs to the user."""

    def dead_letter(self, queue: str, receipt: str, target: str, reasons: Mapping[str, str]) -> bool:
        """Return false: boto3 knows the actions of Amazon SQS alone."""
        return False

    def _call_boto(
        self,
        action: str,
        members: Mapping[str, Any],
        reply_type: type[Reply],
        *,
        wait_s: int = 0,
        patience_s: float | None = None,
    ) -> Reply:
        """Do what ``Transport.call`` does; ``wait_s`` and ``patience_s`` have no effect."""
        method: Callable[..., Any] = getattr(self._boto, xform_name(action))
        try:
            reply = method(**msgspec.to_builtins(members, builtin_types=(bytes,)))
        except Refused as refused:
            error = refused.response.get("Error", {})
            code = error.get("QueryErrorCode") or error.get("Code") or _UNKNOWN  # the former names the exception
            status = refused.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
            raise ClientError(code.rpartition("#")[2], error.get("Message", ""), status) from refused
        except BotoCoreError as failed:
            raise Unreachable(self._boto.meta.endpoint_url, str(failed)) from failed
        try:
            return msgspec.convert(reply, reply_type, builtin_types=(bytes,))
        except msgspec.ValidationError as misfit:
            raise ClientError(UNEXPECTED_REPLY, f"The reply is not that of a queue server: {misfit}.", 200) from misfit
