"""Permissions: check requests against the policies of queues, which are cached.

The first request on a queue reads its policy from the store; that request and later ones on the same queue wait for it,
in order. From then on a check is one dict look-up. A command that may change the policy, or create or delete the queue,
removes it from the cache when it is done. Other servers may change it too, so after some seconds it is read again,
while the cached policy still decides.

A request on a queue that does not exist fails with that error, whatever the caller may do, and does not reach the
store. Commands that create or list queues need no policy.

A parked poll's permission is checked again before each later attempt: after a reload of the credentials its signature
is verified again, and a stale policy is read first, so that a revoked key or a new Deny also ends parked polls. If
neither has changed, a check is one look-up.
"""

import logging
from collections.abc import Callable
from functools import lru_cache, partial
from time import perf_counter
from typing import Any

import msgspec

from veilmq.core import commands, topics
from veilmq.core.commands import BrowseQueues, Command, Done, Engine, InspectQueue, QueuePage, QueueView
from veilmq.core.topics import Forward
from veilmq.server.authentication import Authentication
from veilmq.server.background import Deferred
from veilmq.server.http_parser import Pending
from veilmq.server.protocols import Exchange
from veilmq.wire.exchange import Caller, RequestContext, caller_from_arn
from veilmq.wire.sqs import policies
from veilmq.wire.sqs.errors import ACCESS_DENIED, SqsError
from veilmq.wire.sqs.names import account_of, queue_arn, region_of
from veilmq.wire.sqs.policies import Policy, PolicyRequest, ReadClient, Verdict

log = logging.getLogger(__name__)

FRESH_S = 5.0
"""How long a cached policy is used without reading it again; AWS allows itself 60 s."""

_CACHED_MAX = 65_536
_PASSED_MAX = 256
_CHANGING = frozenset({commands.CreateQueue, commands.DeleteQueue, commands.SetQueue, commands.EditQueue})
"""Commands after which the cached policy of their queue may be wrong."""

INTERCEPTED = _CHANGING | {commands.ListQueues}
"""Commands whose results pass through ``Permissions.intercept``."""

_SEE_ACTION = "GetQueueAttributes"
_SEND_ACTION = "SendMessage"
_QUEUE_ACTIONS = (
    *policies.GRANTABLE,
    *(action for action in policies.OWNER_ONLY if action not in {"CreateQueue", "ListQueues"}),
)

_MOVE_COMMANDS = frozenset({commands.StartMove, commands.CancelMove, commands.ListMoves})
_TOPIC_COMMANDS = frozenset(
    {
        topics.CreateTopic,
        topics.SetTopic,
        topics.DeleteTopic,
        topics.ShowTopic,
        topics.ListTopics,
        topics.PublishToTopic,
        topics.Subscribe,
        topics.SetSubscription,
        topics.Unsubscribe,
        topics.ShowSubscription,
        topics.ListSubscriptions,
    }
)
"""Commands on an account's own topics; subscribing a queue also needs the permission to send to it."""

_WITHOUT_QUEUE = _TOPIC_COMMANDS | {commands.CreateQueue, commands.ListQueues, BrowseQueues}
_WITHOUT_QUEUE |= {commands.ShowAccount, commands.SetAccount}

_WITH_EXTRA_PERMISSIONS = frozenset({Forward, InspectQueue, topics.Subscribe})
"""Commands that need more permissions than that on their own queue: see ``_extra_permissions``."""


class PolicyUnknown(Exception):
    """The policy of ``queue`` is not cached: call ``wait``."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue


@lru_cache(maxsize=4_096)
def _policy(text: str, arn: str) -> Policy:
    try:
        return policies.read_policy(text, arn)
    except policies.PolicyError as error:  # another version accepted it
        log.error("the policy of %s cannot be read, so it denies everything: %s", arn, error)
        return policies.DENY_ALL


class PolicyDecisions:
    """Evaluates queue policies. ``wall_s`` is the raw wall clock, ``secure`` whether requests use TLS."""

    def __init__(self, *, region: str, secure: bool, wall_s: Callable[[], float]) -> None:
        self._context = RequestContext(base_url="", region=region)
        self._secure = secure
        self._wall_s = wall_s

    def arn(self, queue: str) -> str:
        return queue_arn(queue, self._context)

    def read(self, queue: str, text: str) -> Policy | None:
        """Return the policy of ``queue``, ``None`` if ``text`` is empty; an invalid one denies everything."""
        return _policy(text, self.arn(queue)) if text else None

    def denied(
        self, policy: Policy | None, caller: Caller, queue: str, action: str, client: ReadClient
    ) -> PolicyRequest | None:
        """Return the first request that ``action`` needs and that is not permitted; ``None`` if all are.

        ``queue`` may also be the account whose queues are listed.
        """
        request = PolicyRequest(
            caller=caller,
            owner=account_of(queue),
            action="",
            secure=self._secure,
            now_s=self._wall_s(),
            region=region_of(queue, self._context),
            client=client,
        )
        for request.action in policies.actions_of(action):
            if not policies.permits(policy, request):
                return request
        return None

    def by_action(
        self, caller: Caller, queue: str, policy: str, *, peer: str | None, program: str | None
    ) -> list[tuple[str, bool]]:
        """Return all actions on ``queue``, each with whether ``caller`` may do it."""
        read = self.read(queue, policy)
        return [
            (action, self.denied(read, caller, queue, action, lambda: (peer, program)) is None)
            for action in sorted(_QUEUE_ACTIONS)
        ]

    def may_send(self, caller_arn: str, queue: str, policy: str) -> bool:
        """``core.commands.MaySend``: whether a principal may send to ``queue`` now, without a request."""
        caller = caller_from_arn(caller_arn)
        return self.denied(self.read(queue, policy), caller, queue, _SEND_ACTION, lambda: (None, None)) is None


class _CachedPolicy(msgspec.Struct, eq=False):
    """The cached policy of a queue, parsed from ``text``; ``waiting`` requests (with error callbacks) until it is read.

    ``passed`` has the callers, actions and (if the policy depends on them) addresses that always pass.
    """

    stale_at_s: float
    passed: set[tuple[str, str, str | None]] = msgspec.field(default_factory=set)
    text: str = ""
    policy: Policy | None = None
    varies_by_address: bool = False
    waiting: list[tuple[Deferred, Done]] | None = None


class Permissions:
    """The cached policies of one engine's queues."""

    def __init__(self, engine: Engine, decisions: PolicyDecisions) -> None:
        self._engine = engine
        self._decisions = decisions
        self._cached: dict[str, _CachedPolicy] = {}

    def check(self, exchange: Exchange, command: Command, caller: Caller, now_s: float) -> None:
        """Raise ``SqsError`` if ``caller`` may not run ``command``, ``PolicyUnknown`` if a policy must be read."""
        kind = type(command)
        if kind not in _WITHOUT_QUEUE:
            queue = command.source if kind in _MOVE_COMMANDS else command.queue  # type: ignore[attr-defined]
            cached = self._cached.get(queue)
            if (
                cached is None
                or cached.varies_by_address
                or (caller.arn, exchange.action, None) not in cached.passed
                or now_s >= cached.stale_at_s
            ):  # otherwise known to pass
                self._check(queue, exchange, None, caller, now_s)
        if kind in _WITH_EXTRA_PERMISSIONS:
            for other, action in _extra_permissions(command):
                self._check(other, exchange, action, caller, now_s)

    def _check(self, queue: str, exchange: Exchange, action: str | None, caller: Caller, now_s: float) -> None:
        """Check ``action`` (default: the request's) on one queue; cache a pass that depends on nothing else."""
        cached = self._cached.get(queue)
        if cached is None or cached.waiting is not None:
            raise PolicyUnknown(queue)
        if now_s >= cached.stale_at_s:
            cached.stale_at_s = now_s + FRESH_S
            self._engine.submit(commands.ShowQueue(queue=queue), partial(self._cache_policy, queue, cached))
        address = exchange.request.source_ip() if cached.varies_by_address else None
        passed = caller.arn, action or exchange.action, address
        if passed in cached.passed:
            return
        policy, needed = cached.policy, action or exchange.permission
        denied = self._decisions.denied(policy, caller, queue, needed, exchange.request.client)
        if denied is not None:
            reason = f"because no resource-based policy allows the sqs:{denied.action} action"
            if policy is not None and policy.verdict(denied) is Verdict.DENY:
                reason = "with an explicit deny in a resource-based policy"
            subject = f"User: {caller.arn} is not authorized to perform: sqs:{denied.action} on resource"
            raise SqsError(ACCESS_DENIED, f"{subject}: {self._decisions.arn(queue)} {reason}")
        if policy is None or not any(map(policy.varies, policies.actions_of(needed))):
            if len(cached.passed) >= _PASSED_MAX:
                cached.passed.clear()
            cached.passed.add(passed)

    def expire(self, queue: str, now_s: float) -> None:
        """Drop a stale policy of ``queue``, so that the next check waits for the current one."""
        cached = self._cached.get(queue)
        if cached is not None and cached.waiting is None and now_s >= cached.stale_at_s:
            del self._cached[queue]

    def wait(self, unknown: PolicyUnknown, retry: Callable[[], Pending | None], failed: Done, now_s: float) -> Pending:
        """Call ``retry`` when the policy is read, or ``failed`` with the engine's error."""
        queue = unknown.queue
        waiting = Deferred(retry)
        cached = self._cached.get(queue)
        if cached is not None and cached.waiting is not None:
            cached.waiting.append((waiting, failed))
            return waiting
        if len(self._cached) >= _CACHED_MAX:
            self._cached.clear()
        cached = self._cached[queue] = _CachedPolicy(now_s + FRESH_S, waiting=[(waiting, failed)])
        self._engine.submit(commands.ShowQueue(queue=queue), partial(self._cache_policy, queue, cached))
        return waiting

    def intercept(self, exchange: Exchange, command: Command, caller: Caller, done: Done) -> Done:
        """Return a wrapper of ``done`` for a command of ``INTERCEPTED``.

        It removes queues from a listing that ``caller`` may not see; after other commands it drops the cached policy.
        """

        def show(result: Any) -> None:
            if isinstance(result, QueuePage) and result.views:
                seen = [view for view in result.views if self._may_see(view, exchange, caller)]
                result = msgspec.structs.replace(result, views=seen)
            done(result)

        def drop(result: Any) -> None:
            self._cached.pop(command.queue, None)  # type: ignore[attr-defined]
            done(result)

        return show if type(command) is commands.ListQueues else drop

    def restricted(self, exchange: Exchange, command: BrowseQueues, caller: Caller) -> BrowseQueues:
        """Return ``command`` limited to what ``caller`` may see; for queues without a policy, all or nothing."""
        denied = self._decisions.denied(None, caller, command.account, _SEE_ACTION, exchange.request.client)

        def may_see(view: QueueView) -> bool:
            return self._may_see(view, exchange, caller) if view.settings.policy else denied is None

        return msgspec.structs.replace(command, may_see=may_see)

    def _may_see(self, view: QueueView, exchange: Exchange, caller: Caller) -> bool:
        policy = self._decisions.read(view.queue, view.settings.policy)
        return self._decisions.denied(policy, caller, view.queue, _SEE_ACTION, exchange.request.client) is None

    def _cache_policy(self, queue: str, cached: _CachedPolicy, result: Any) -> None:
        """Cache the policy that the engine returned, and start the waiting requests."""
        waiting, cached.waiting = cached.waiting or (), None
        if not isinstance(result, QueueView):
            if self._cached.get(queue) is cached:
                del self._cached[queue]
        elif result.settings.policy != cached.text:
            cached.text = result.settings.policy
            cached.policy = self._decisions.read(result.queue, cached.text)
            cached.varies_by_address = cached.policy is not None and cached.policy.uses_address
            cached.passed.clear()
        for request, failed in waiting:
            if isinstance(result, QueueView):
                request.start()
            elif not request.withdrawn:
                failed(result)


def _extra_permissions(command: Any) -> list[tuple[str, str]]:
    if isinstance(command, Forward):
        targets = dict.fromkeys(entry.target for entry in command.entries)
        return [(command.queue, "DeleteMessage"), *((target, _SEND_ACTION) for target in targets)]
    if isinstance(command, InspectQueue):  # with others' receipts one can end their leases: as bad as a purge
        return [(command.queue, "PurgeQueue")] if command.receipts else []
    queue = command.subscription.queue
    return [(queue, _SEND_ACTION)] if queue else []


class ParkedPermission(msgspec.Struct, eq=False):
    """Permission of a parked poll. ``context`` is the unsigned context, ``loads`` that of the keys verified last."""

    exchange: Exchange
    command: Command
    caller: Caller
    context: RequestContext
    authentication: Authentication
    permissions: Permissions
    loads: int

    def check(self, proceed: Done, started_s: float | None = None) -> None:
        """Call ``proceed`` with ``None`` if the poll may continue, else with a ``Reply`` or the engine's error."""
        exchange, protocol, refusal = self.exchange, self.exchange.protocol, None
        now_s = started_s or perf_counter()
        if started_s is None:
            self.permissions.expire(self.command.queue, now_s)  # type: ignore[attr-defined]
        try:
            if self.loads != self.authentication.loads:
                signed = self.authentication.context(exchange.request, self.context, protocol.verifier)
                self.caller, self.loads = signed.caller or self.caller, self.authentication.loads
            self.permissions.check(exchange, self.command, self.caller, now_s)
        except (protocol.refused, SqsError) as error:
            refusal = protocol.refuse(error, exchange.base_url)
        except PolicyUnknown as unknown:
            self.permissions.wait(unknown, partial(self.check, proceed, now_s), proceed, now_s)
            return
        proceed(refusal)
