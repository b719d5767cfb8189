"""The permission of a receive or claim that was kept waiting: checked again before each later attempt.

A credentials file that was reloaded has the signature verified again, and a policy that is stale is read again first,
so that a revoked key or a new Deny acts on parked polls, too. While neither changed, a check is one look-up.
"""

from time import perf_counter
from typing import Any

import msgspec

from veilmq.core.commands import Command
from veilmq.core.ports import Done
from veilmq.server.authentication import Authentication
from veilmq.server.denial import Denial
from veilmq.server.http_request import Request
from veilmq.server.permissions import Exchange, Permissions, Unknown
from veilmq.server.protocols import Protocol
from veilmq.wire.exchange import Caller, RequestContext


class ParkedPermission(msgspec.Struct, eq=False):
    """An ``Exchange`` of the instant at which a parked poll goes on. ``context`` is that of an unsigned request."""

    exchange: Exchange
    command: Command
    caller: Caller
    protocol: Protocol
    context: RequestContext
    known: Caller | None
    authentication: Authentication
    permissions: Permissions
    loads: int = 0
    started_s: float = 0.0
    go_on: Done | None = None

    def __post_init__(self) -> None:
        """Note which keys the signature was verified with."""
        self.loads = self.authentication.loads

    @property
    def request(self) -> Request:
        """Return the request that was parked."""
        return self.exchange.request

    @property
    def action(self) -> str:
        """Return its action."""
        return self.exchange.action

    @property
    def permission(self) -> str:
        """Return the action on which a queue's policy decides."""
        return self.exchange.permission

    def check(self, go_on: Done) -> None:
        """Call ``go_on`` with ``None`` where the poll may go on, else with a ``Reply`` or the engine's error."""
        self.go_on = go_on
        self.started_s = perf_counter()
        self.permissions.expire(self.command.queue, self.started_s)  # type: ignore[attr-defined]
        self._check()

    def done(self, result: Any) -> None:
        """Pass the verdict on, or the error with which the policy could not be read."""
        go_on, self.go_on = self.go_on, None
        if go_on is not None:
            go_on(result)

    def _check(self) -> None:
        protocol, verdict = self.protocol, None
        try:
            if self.loads != self.authentication.loads:
                signed = self.authentication.context(self.request, self.context, protocol.verifier, self.known)
                self.caller, self.loads = signed.caller or self.caller, self.authentication.loads
            self.permissions.check(self, self.command, self.caller)
        except protocol.refused as error:
            verdict = protocol.refuse(error, self.context.base_url)
        except Denial as denial:
            verdict = protocol.refuse(protocol.deny(denial), self.context.base_url)
        except Unknown as unknown:
            self.permissions.wait(self, unknown, self._check)
            return
        self.done(verdict)
