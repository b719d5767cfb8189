"""The guard that is told of each policy: how long before its end a lease would be renewed."""

import pytest

from veilmq.consumer import Adaptive, Fixed, NServiceBusPolicy
from veilmq.consumer.renewal_policies import Measured, RenewalPolicy
from veilmq.consumer.status import guard_of

BUSY = Measured(hold_s=60.0, renewal_s=0.5, renewals=1_000, lateness_s=0.25, call_s=0.4)


@pytest.mark.parametrize(
    ("policy", "timeout_s", "measured", "guard_s"),
    [
        pytest.param(Fixed(60, 20), 60, Measured(), 40.0, id="fixed"),
        pytest.param(Adaptive(), 90, Measured(), 30.0, id="adaptive-share"),
        pytest.param(Adaptive(guard_share=0.0), 90, BUSY, 4.0, id="adaptive-measured"),
        pytest.param(NServiceBusPolicy(), 30, Measured(), 10.0, id="nservicebus"),
    ],
)
def test_the_guard_of_a_fresh_lease(policy: RenewalPolicy, timeout_s: int, measured: Measured, guard_s: float) -> None:
    assert guard_of(policy, timeout_s, measured) == pytest.approx(guard_s)
