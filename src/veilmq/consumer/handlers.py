"""A handler: a plain function with its options, and what its signature says about payload and context."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.clock import Span, span_s
from veilmq.consumer.context import Backoff, Batch, Context, Undecodable
from veilmq.consumer.records import Idempotency
from veilmq.consumer.renewal_policies import Adaptive, RenewalPolicy
from veilmq.core.limits import LEASE_S_MAX, SQS_RECEIVE_WAIT_S

_log = logging.getLogger("veilmq.consumer")


HOOKS = ("receive", "start", "settle", "renew", "suspect", "lost", "ending", "release")

Hook = Callable[..., Any]


class Hooks:
    """Functions by what they watch."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {}

    def add(self, name: str, hook: Hook) -> None:
        """Call ``hook`` at each ``name``; raises ``ValueError`` for an unknown name."""
        if name not in HOOKS:
            raise ValueError(f"there is no hook {name!r}; there are {', '.join(HOOKS)}")
        self._hooks.setdefault(name, []).append(hook)

    def has(self, name: str) -> bool:
        """Return whether anything watches ``name``."""
        return name in self._hooks

    def call(self, name: str, *arguments: object) -> None:
        """Call what watches ``name``; a hook that fails is logged, and stops nothing else."""
        for hook in self._hooks.get(name, ()):
            try:
                hook(*arguments)
            except Exception:  # noqa: BLE001 - a hook may raise anything
                _log.exception("the hook %r for %r failed", hook, name)


# From a message to what the handler is annotated with.
#
# ``str`` is the body, ``bytes`` its UTF-8, ``ReceivedMessage`` all of it. A pydantic model reads the body by itself;
# everything else (dataclasses, msgspec structs, typed dicts, lists …) is JSON, read and checked by msgspec. Without an
# annotation the body is handed over as text.

Decode = Callable[[ReceivedMessage], Any]


def decoder(annotation: Any) -> Decode:
    """Return how a message becomes ``annotation``; it raises ``Undecodable``. ``TypeError`` for what JSON cannot be."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    model = getattr(annotation, "model_validate_json", None)
    is_model = inspect.isclass(annotation) and model is not None
    read: Any = model if is_model else msgspec.json.Decoder(annotation).decode

    def decode(message: ReceivedMessage) -> Any:
        try:
            return read(message.body)
        except (ValueError, TypeError) as error:  # both libraries' errors are ValueErrors
            raise Undecodable(f"The body is not what the handler takes: {error}") from error

    return decode


_PLAIN: dict[Any, Decode] = {
    inspect.Parameter.empty: lambda message: message.body,
    Any: lambda message: message.body,
    str: lambda message: message.body,
    bytes: lambda message: message.body.encode(),
    ReceivedMessage: lambda message: message,
}


OnLost = str | Callable[[Context], object]

OUTSTANDING_BYTES_MAX = 100 * 1024 * 1024
"""Of one handler, by default; as in the clients of Google Pub/Sub."""
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
    policy: RenewalPolicy = field(default_factory=Adaptive)
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
    """How messages are collected for a batch handler; ``key`` keeps messages of different keys apart."""

    size_max: int
    linger_s: float
    key: Callable[[Any], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """``function`` takes the payload, and the context at the place ``context_at``, if it has a parameter for it."""

    function: Callable[..., Any]
    options: Options
    decode: Decode
    context_at: int | None
    batching: Batching | None = None

    @property
    def name(self) -> str:
        """The function's name, for logs and metrics."""
        return getattr(self.function, "__name__", repr(self.function))

    def arguments(self, payload: object, context: Context) -> tuple[Any, ...]:
        """Return what the function is called with."""
        if self.context_at is None:
            return (payload,)
        return (payload, context) if self.context_at else (context, payload)


def make_handler(function: Callable[..., Any], options: Options, batching: Batching | None = None) -> Handler:
    """Return ``function`` as a handler; raises ``TypeError`` for a signature that no message fits."""
    try:
        hints = get_type_hints(function)
    except NameError as error:
        where = "define its types at the top of a module, before it"
        raise TypeError(f"handler {function.__qualname__}: {error}; {where}") from error
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [
        hints.get(name, inspect.Parameter.empty)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind in positional
    ]
    contexts = [place for place, hint in enumerate(parameters) if hint is Context]
    payloads = [hint for hint in parameters if hint is not Context]
    if len(payloads) != 1 or len(contexts) > 1 or (batching and contexts):
        wanted = "a batch" if batching else "the payload, and the Context if it wants one"
        raise TypeError(f"handler {function.__qualname__} must take {wanted}, and nothing else without a default")
    payload = payloads[0]
    if batching is not None:  # ``T`` of ``Batch[T]``
        payload = get_args(payload)[0] if get_origin(payload) is Batch else inspect.Parameter.empty
    return Handler(
        function=function,
        options=options,
        decode=decoder(payload),
        context_at=contexts[0] if contexts else None,
        batching=batching,
    )


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
