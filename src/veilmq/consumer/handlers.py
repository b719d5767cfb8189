"""A handler: a plain function with its options, and what its signature says about payload and context."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin, get_type_hints

from veilmq.consumer.adaptive import Adaptive
from veilmq.consumer.backoff import Backoff
from veilmq.consumer.batches import Batch
from veilmq.consumer.context import Context
from veilmq.consumer.outstanding import OUTSTANDING_BYTES_MAX
from veilmq.consumer.payloads import Decode, decoder
from veilmq.consumer.policies import Fixed, Policy
from veilmq.consumer.records.idempotency import Idempotency
from veilmq.consumer.spans import Span, span_s
from veilmq.core.limits import LEASE_S_MAX, SQS_RECEIVE_WAIT_S

OnLost = str | Callable[[Context], object]

POOLS = ("async", "thread", "process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one handler is run; durations in seconds. ``docs/consumer.md`` explains each."""

    queue: str
    concurrency: int = 16
    prefetch: int | None = None
    max_outstanding_bytes: int = OUTSTANDING_BYTES_MAX
    polls: int = 6
    wait_s: int = SQS_RECEIVE_WAIT_S.maximum
    pool: str = "async"
    policy: Policy = field(default_factory=Adaptive)
    strict: bool = False
    timeout_s: float = 3_600.0
    stall_s: float | None = None
    retry: Backoff = field(default_factory=Backoff)
    dead_letter: str | None = None
    on_lost: OnLost = "cancel"
    kill_on_lost: bool = False
    idempotency: Idempotency | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How messages are gathered for a batch handler; ``key`` keeps messages of different keys apart."""

    size_max: int
    linger_s: float
    key: Callable[[Any], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """``function`` takes the payload at ``payload_at``, and the context at ``context_at`` if it wants one."""

    function: Callable[..., Any]
    options: Options
    decode: Decode
    takes_context: bool
    context_first: bool = False
    batching: Batching | None = None

    @property
    def name(self) -> str:
        """The function's name, for logs and metrics."""
        return getattr(self.function, "__name__", repr(self.function))

    def arguments(self, payload: object, context: Context) -> tuple[Any, ...]:
        """Return what the function is called with."""
        if not self.takes_context:
            return (payload,)
        return (context, payload) if self.context_first else (payload, context)


def make_handler(function: Callable[..., Any], options: Options, batching: Batching | None = None) -> Handler:
    """Return ``function`` as a handler; raises ``TypeError`` for a signature that no message fits."""
    parameters = _parameters(function)
    contexts = [place for place, (_, hint) in enumerate(parameters) if hint is Context]
    payloads = [hint for _, hint in parameters if hint is not Context]
    if len(payloads) != 1 or len(contexts) > 1 or (batching and contexts):
        wanted = "a batch" if batching else "the payload, and the Context if it wants one"
        raise TypeError(f"handler {function.__qualname__} must take {wanted}, and nothing else without a default")
    return Handler(
        function=function,
        options=options,
        decode=decoder(_item(payloads[0]) if batching else payloads[0]),
        takes_context=bool(contexts),
        context_first=contexts == [0],
        batching=batching,
    )


def policy_of(lease: object) -> Policy:
    """Return the policy that the option ``lease`` names: ``"auto"``, a policy, or one length for all leases."""
    if isinstance(lease, str) and lease == "auto":
        return Adaptive()
    if hasattr(lease, "renew_at_s"):
        return lease  # type: ignore[return-value]  # a policy, by its one method that nothing else has
    return Fixed(span_s(lease))  # type: ignore[arg-type]  # span_s refuses what is no span


def pool_of(function: Callable[..., Any], pool: str | None) -> str:
    """Return where ``function`` runs; raises ``ValueError`` for a pool that cannot run it."""
    is_async = inspect.iscoroutinefunction(function)
    chosen = pool or ("async" if is_async else "thread")
    if chosen not in POOLS:
        raise ValueError(f"pool is {pool!r}; use one of {', '.join(POOLS)}")
    if is_async != (chosen == "async"):
        kind = "an async function" if is_async else "a plain function"
        raise ValueError(f"handler {function.__qualname__} is {kind}: it cannot run in the {chosen} pool")
    return chosen


def timeout_of(timeout: Span) -> float:
    """Return the option ``timeout`` in seconds; raises ``ValueError`` beyond the twelve hours of a lease."""
    timeout_s = span_s(timeout)
    if not 0 < timeout_s <= LEASE_S_MAX:
        raise ValueError(f"timeout is {timeout_s:g} s; it must be above 0 and up to {LEASE_S_MAX} s (12 hours)")
    return timeout_s


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    try:
        hints = get_type_hints(function)
    except NameError as error:
        raise TypeError(
            f"handler {function.__qualname__}: {error}; define its types at the top of a module, before it"
        ) from error
    return [
        (name, hints.get(name, inspect.Parameter.empty))
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]


def _item(hint: Any) -> Any:
    """Return ``T`` of ``Batch[T]``."""
    return get_args(hint)[0] if get_origin(hint) is Batch else inspect.Parameter.empty
