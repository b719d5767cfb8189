"""What the answer to a renewal is taken for: by the own request, then by the code, then by the words."""

import pytest

from tests.consumer.simulation import BEYOND, BUSY, CUT_OFF, FORBIDDEN_FOR_NOW, GONE, INVALID, THROTTLED
from veilmq.client.messages import ClientError, Hidden
from veilmq.consumer.renewal_policies import RenewalResult, renewal_result

NOT_IN_FLIGHT = ClientError("AWS.SimpleQueueService.MessageNotInflight", "It is not in flight.", 400)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(None, RenewalResult.RENEWED, id="success"),
        pytest.param(Hidden(30.0), RenewalResult.PROVEN, id="proof"),
        pytest.param(Hidden(0.9), RenewalResult.AGAIN, id="nothing-granted"),
        pytest.param(GONE, RenewalResult.GONE, id="gone"),
        pytest.param(INVALID, RenewalResult.GONE, id="invalid"),
        pytest.param(NOT_IN_FLIGHT, RenewalResult.GONE, id="not-in-flight"),
        pytest.param(BEYOND, RenewalResult.AT_LIMIT, id="beyond"),
        pytest.param(BUSY, RenewalResult.AGAIN, id="busy"),
        pytest.param(THROTTLED, RenewalResult.AGAIN, id="throttled-400"),
        pytest.param(FORBIDDEN_FOR_NOW, RenewalResult.AGAIN, id="throttled-403"),
        pytest.param(CUT_OFF, RenewalResult.AGAIN, id="cut-off"),
        pytest.param(ClientError("ExpiredToken", "Renew it.", 403), RenewalResult.AGAIN, id="token"),
        pytest.param(ClientError("InvalidParameterValue", "Oops.", 500), RenewalResult.AGAIN, id="servers-fault"),
        pytest.param(ValueError("a bug"), RenewalResult.AGAIN, id="bug"),
    ],
)
def test_the_answer_to_a_legal_request(error: Exception | Hidden | None, expected: RenewalResult) -> None:
    """Only what is known to mean a loss is one."""
    assert renewal_result(error, requested_s=30, elapsed_s=100) is expected


@pytest.mark.parametrize(
    ("requested_s", "elapsed_s"),
    [(43_201, 0), (0, 0), (-5, 0), (30, 43_190)],
    ids=["range", "zero", "negative", "total"],
)
def test_the_answer_to_an_illegal_request_is_no_loss(requested_s: int, elapsed_s: float) -> None:
    """The very code that means a loss otherwise."""
    assert renewal_result(GONE, requested_s=requested_s, elapsed_s=elapsed_s) is RenewalResult.AT_LIMIT
