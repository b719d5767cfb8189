"""What was promised to those who asked about a lease: a proof that it is held, or that no renewal of it will come.

Used under the lock of the lease table; a promise is kept when that is free again, with whatever else there is to
``tell``, since it may wake anybody.
"""

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TypeVar

from veilmq.consumer.leases import Lease, LeaseLost, LeaseState

T = TypeVar("T")

Tell = Callable[[Callable[[], object]], object]
"""Has something called when the lock is free."""


class Promises:
    """Fences and withdrawals; the lease itself keeps what is open."""

    def __init__(self, tell: Tell) -> None:
        """Promise nothing yet."""
        self._tell = tell

    def proof(self, lease: Lease) -> "Future[LeaseState]":
        """Promise to tell of ``lease`` what its next renewal proves."""
        fence: Future[LeaseState] = Future()
        lease.fences.append(fence)
        return fence

    def proven(self, lease: Lease) -> None:
        """Keep the promises of a proof: a renewal succeeded. It proves nothing where the lease had passed before."""
        if lease.state is not LeaseState.HELD:
            return
        fences, lease.fences = lease.fences, []
        for fence in fences:
            self._tell(partial(_keep, fence.set_result, lease.state))

    def broken(self, lease: Lease, state: LeaseState) -> None:
        """Say that there will be no proof, as ``lease`` is in ``state``."""
        fences, lease.fences = lease.fences, []
        for fence in fences:
            self._tell(partial(_keep, fence.set_exception, LeaseLost(state)))

    def quiet(self, lease: Lease, may_release: Callable[[Lease], bool]) -> None:
        """Say that no renewal of ``lease``, which was withdrawn, is on its way, and whether it ``may_release`` then."""
        withdrawal = lease.withdrawal
        assert withdrawal is not None
        self._tell(lambda: _keep(withdrawal.set_result, may_release(lease)))


def _keep(told: Callable[[T], object], what: T) -> None:
    """Tell it, unless that was done, or nobody waits any more: a handler may have been cancelled in its fence."""
    with suppress(InvalidStateError):
        told(what)
