"""What a refused stream ends with: the server's sentence, and what to do."""

import pytest

from veilmq.client.api import Claims
from veilmq.client.messages import ClientError
from veilmq.core import errors
from veilmq.spark.retries import ACTIONS, SourceFailed, advised
from veilmq.testing import RunningServer

OF_SQS = {"AccessDenied", "QueueDoesNotExist"}


def test_a_queue_that_does_not_exist_is_told_with_what_to_do() -> None:
    """Whether it is named or given by its URL."""
    with RunningServer() as server:
        for queue in ("none", f"{server.endpoint}/000000000000/none"):
            with (
                Claims(server.endpoint, queue) as claims,
                pytest.raises(SourceFailed, match="options endpoint and queue"),
                advised(),
            ):
                claims.open("s")


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(ClientError, match="a defect"), advised():
        raise ClientError("InternalError", "a defect", 500)


def test_advice_is_for_errors_that_there_are() -> None:
    assert {code for code in ACTIONS if not hasattr(errors, code)} == OF_SQS
