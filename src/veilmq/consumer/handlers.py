"""What a consumer is made of: handlers with their options, and what surrounds them.

A handler is a plain function, whose signature says what it takes of payload, context and dependencies. Around it are
functions at start-up and shutdown, the objects that they share, and middleware.
"""

import inspect
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints

import msgspec

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.clock import Span, Threads, span_s
from veilmq.consumer.context import Backoff, Batch, Context, Undecodable
from veilmq.consumer.records import ByKey
from veilmq.consumer.renewal_policies import Adaptive, Fixed, RenewalPolicy
from veilmq.core.limits import LEASE_S_MAX, SQS_RECEIVE_WAIT_S
from veilmq.core.messages import Attribute
from veilmq.wire.sqs.names import is_fifo

_log = logging.getLogger("veilmq.consumer")


HOOKS = ("receive", "start", "settle", "renew", "suspect", "lost", "ending", "release")

Hook = Callable[..., Any]


class Hooks:
    """Functions by what they watch."""

    def __init__(self, before: "Hooks | None" = None) -> None:
        """Call those of ``before`` first, also what is added to it later."""
        self._before = before
        self._hooks: dict[str, list[Hook]] = {}

    def add(self, name: str, hook: Hook) -> None:
        """Call ``hook`` at each ``name``; raises ``ValueError`` for an unknown name."""
        if name not in HOOKS:
            raise ValueError(f"there is no hook {name!r}; there are {', '.join(HOOKS)}")
        self._hooks.setdefault(name, []).append(hook)

    def has(self, name: str) -> bool:
        """Return whether anything watches ``name``."""
        return name in self._hooks or (self._before is not None and self._before.has(name))

    def call(self, name: str, *arguments: object) -> None:
        """Call what watches ``name``; a hook that fails is logged, and stops nothing else."""
        if self._before is not None:
            self._before.call(name, *arguments)
        for hook in self._hooks.get(name, ()):
            try:
                hook(*arguments)
            except Exception:  # noqa: BLE001 - a hook may raise anything
                _log.exception("the hook %r for %r failed", hook, name)


# From a message to what the handler is annotated with, and from what is sent to a body.
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
            raise Undecodable(f"The body does not match the handler's type: {error}") from error

    return decode


_PLAIN: dict[Any, Decode] = {
    inspect.Parameter.empty: lambda message: message.body,
    Any: lambda message: message.body,
    str: lambda message: message.body,
    bytes: lambda message: message.body.encode(),
    ReceivedMessage: lambda message: message,
}


def body_of(payload: Any) -> str:
    """Return the body from which a handler reads ``payload``; raises ``TypeError`` for what JSON cannot be."""
    if isinstance(payload, str):
        return payload
    if isinstance(payload, bytes):
        return payload.decode()
    dump = getattr(payload, "model_dump_json", None)  # pydantic's
    return dump() if dump is not None else msgspec.json.encode(payload).decode()


def attributes_of(given: Mapping[str, Attribute | str]) -> dict[str, Attribute]:
    """Return attributes as clients take them; a ``str`` is one of the type ``String``."""
    return {
        name: Attribute(type="String", text=value) if isinstance(value, str) else value for name, value in given.items()
    }


PoolName = Literal["async", "thread", "process"]
OnLost = Literal["cancel", "continue"] | Callable[[Context], object]

OUTSTANDING_BYTES_MAX = 100 * 1024 * 1024
"""Of one handler, by default; as in the clients of Google Pub/Sub."""


class HandlerOptions(TypedDict, total=False):
    """What ``Consumer.handler`` and ``Consumer.batch`` take; ``docs/consumer.md`` explains each."""

    queue: str
    concurrency: int
    prefetch: int | None
    max_outstanding_bytes: int
    polls: int
    wait: Span
    pool: PoolName | None
    lease: RenewalPolicy | Span
    strict: bool
    timeout: Span
    stall: Span | None
    retry: Backoff | None
    dead_letter: str | None
    on_lost: OnLost
    kill_on_lost: bool
    idempotency: ByKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one handler is run: its checked ``HandlerOptions``; durations in seconds."""

    queue: str
    concurrency: int = 16
    prefetch: int | None = None
    max_outstanding_bytes: int = OUTSTANDING_BYTES_MAX
    polls: int = 6
    wait_s: int = SQS_RECEIVE_WAIT_S.maximum
    pool: PoolName = "async"
    policy: RenewalPolicy = field(default_factory=Adaptive)
    strict: bool = False
    timeout_s: float = 3_600.0
    stall_s: float | None = None
    retry: Backoff = field(default_factory=Backoff)
    dead_letter: str | None = None
    on_lost: OnLost = "cancel"
    kill_on_lost: bool = False
    idempotency: ByKey | None = None


def checked(least: int, most: float, name: str, value: int) -> int:
    """Return ``value``; raises ``ValueError`` unless it is from ``least`` to ``most``."""
    if not least <= value <= most:
        bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{name} is {value}; it must be {bounds}")
    return value


def _timeout_s(name: str, timeout: Span) -> float:
    timeout_s = span_s(timeout)
    if not 0 < timeout_s <= LEASE_S_MAX:
        raise ValueError(f"{name} is {timeout_s:g} s; it must be above 0 and up to {LEASE_S_MAX} s (12 hours)")
    return timeout_s


def _policy(name: str, lease: Any) -> Any:
    if hasattr(lease, "renew_at_s"):  # a policy, by its one method that nothing else has
        return lease
    return Adaptive() if lease == "auto" else Fixed(lease)


_FIELDS = {"wait": "wait_s", "timeout": "timeout_s", "stall": "stall_s", "lease": "policy"}
_READ: dict[str, Callable[[str, Any], object]] = {
    "concurrency": partial(checked, 1, math.inf),
    "prefetch": partial(checked, 0, math.inf),
    "max_outstanding_bytes": partial(checked, 1, math.inf),
    "polls": partial(checked, 1, math.inf),
    "wait": lambda name, wait: checked(1, SQS_RECEIVE_WAIT_S.maximum, name, int(span_s(wait))),
    "timeout": _timeout_s,
    "stall": _timeout_s,
    "lease": _policy,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How messages are collected for a batch handler; ``key`` keeps messages of different keys apart."""

    size_max: int
    linger_s: float
    key: Callable[[Any], object] | None = None


PAYLOAD = object()
"""Stands for the payload among the types of a handler's parameters."""

State = Mapping[Any, object]
"""What start-up functions have returned, by type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """``function`` with the types of its parameters: ``PAYLOAD``, ``Context``, and what start-up functions return.

    Those whose names are in ``keywords`` come last.
    """

    function: Callable[..., Any]
    options: Options
    decode: Decode
    parameters: tuple[Any, ...]
    keywords: tuple[str, ...] = ()
    batching: Batching | None = None

    @property
    def name(self) -> str:
        """The function's name, for logs and metrics."""
        return getattr(self.function, "__name__", repr(self.function))

    def call(self, subject: Context | Batch[Any], state: State) -> Any:
        """Call the function for a message, which is decoded here, or for a batch, and return what it returns."""
        payload = self.decode(subject.message) if isinstance(subject, Context) else subject
        given = [
            payload if hint is PAYLOAD else subject if hint is Context else state[hint] for hint in self.parameters
        ]
        if not self.keywords:
            return self.function(*given)
        split = len(given) - len(self.keywords)
        return self.function(*given[:split], **dict(zip(self.keywords, given[split:], strict=True)))


def types_of(function: Callable[..., Any], *, kind: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the types of the parameters without a default, by name, and the names of keywords among them.

    Keywords come last; ``"return"`` has the type of the result. Raises ``TypeError`` for types that are not to be found
    where ``function``, a ``kind`` such as "handler", is declared.
    """
    try:
        hints = get_type_hints(function)
    except NameError as error:
        where = "define its types at the top of a module, before it"
        raise TypeError(f"{kind} {function.__qualname__}: {error}; {where}") from error
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in variadic
    ]
    types = {parameter.name: hints.get(parameter.name, inspect.Parameter.empty) for parameter in parameters}
    keywords = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    return types | {"return": hints.get("return", inspect.Parameter.empty)}, tuple(keywords)


def make_handler(
    function: Callable[..., Any], *, batching: Batching | None = None, **given: Unpack[HandlerOptions]
) -> Handler:
    """Return ``function`` as a handler; ``given`` has the queue, and other options.

    Raises ``TypeError`` for a signature that no message fits and an unknown option, ``ValueError`` for an option that
    makes no sense.
    """
    types, keywords = types_of(function, kind="handler")
    del types["return"]
    hints = [*types.values()]
    payload_at = next((place for place, hint in enumerate(hints) if hint is not Context), None)
    others = [hint for place, hint in enumerate(hints) if place != payload_at]
    plain = [
        hint for hint in others if hint in _PLAIN or getattr(get_origin(hint) or hint, "__module__", "") == "builtins"
    ]
    if payload_at is None or others.count(Context) > (0 if batching else 1) or plain:
        wanted = "a batch" if batching else "the payload, and the Context if it wants one"
        more = "and beside that, or with a default, only what start-up functions return, by its type"
        raise TypeError(f"handler {function.__qualname__} must take {wanted}; {more}")
    payload, hints[payload_at] = hints[payload_at], PAYLOAD
    if batching is not None:  # ``T`` of ``Batch[T]``
        payload = get_args(payload)[0] if get_origin(payload) is Batch else inspect.Parameter.empty
    options = _options(function, batching, given)
    if options.pool == "process" and len(others) > others.count(Context):
        raise TypeError(f"handler {function.__qualname__} runs in other processes, where no start-up function has run")
    return Handler(
        function=function,
        options=options,
        decode=decoder(payload),
        parameters=tuple(hints),
        keywords=keywords,
        batching=batching,
    )


def _options(function: Callable[..., Any], batching: Batching | None, given: Mapping[str, Any]) -> Options:
    if unknown := given.keys() - HandlerOptions.__annotations__.keys():
        known = ", ".join(HandlerOptions.__annotations__)
        raise TypeError(f"a handler has no option {', '.join(sorted(unknown))}; there are {known}")
    values: dict[str, Any] = {
        _FIELDS.get(name, name): _READ[name](name, value) if name in _READ else value
        for name, value in given.items()
        if value is not None
    }
    values["pool"] = _pool(function, values.get("pool"))
    options = Options(**values)
    if batching is not None and is_fifo(options.queue):
        raise ValueError("a FIFO queue's messages are handled one by one; use @app.handler")
    if batching is not None and options.pool == "process":
        raise ValueError("a batch handler runs in the async or the thread pool")
    if options.kill_on_lost and options.pool != "process":
        raise ValueError("kill_on_lost needs pool='process': neither a task nor a thread can be killed")
    if not callable(options.on_lost) and options.on_lost not in ("cancel", "continue"):
        raise ValueError(f'on_lost is {options.on_lost!r}; use "cancel", "continue", or a function')
    return options


def _pool(function: Callable[..., Any], pool: Any) -> Any:
    """Return where ``function`` runs; raises ``ValueError`` for a pool that cannot run it."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"handler {function.__qualname__} is a generator, which nothing would run: it must not yield")
    is_async = inspect.iscoroutinefunction(function)
    chosen = pool or ("async" if is_async else "thread")
    if chosen not in get_args(PoolName):
        raise ValueError(f"pool is {pool!r}; use one of {', '.join(get_args(PoolName))}")
    if is_async != (chosen == "async"):
        kind = "an async function" if is_async else "a plain function"
        raise ValueError(f"handler {function.__qualname__} is {kind}: it cannot run in the {chosen} pool")
    return chosen


# What surrounds handlers.

Function = TypeVar("Function", bound=Callable[..., Any])

CallNext = Callable[[], Awaitable[None]]
"""Runs the rest of the middleware and the handler; raises what they raise, and the verb that a handler returned."""
Middleware = Callable[[Any, CallNext], Awaitable[object]]


class _Function(NamedTuple):
    function: Callable[..., Any]
    takes: Mapping[str, Any]
    gives: Any

    @property
    def name(self) -> str:
        return self.function.__qualname__

    async def call(self, state: State, threads: Threads) -> Any:
        given = {name: state[hint] for name, hint in self.takes.items()}

        def call() -> Any:
            try:
                return self.function(**given)
            except StopIteration as error:  # which no future can raise
                raise RuntimeError(f"{self.name} raised StopIteration") from error

        if inspect.iscoroutinefunction(self.function):
            return await call()
        context = copy_context()
        result = await threads.run(context.run, call)
        for variable, value in context.items():  # as if it had been called here
            if variable.get(variable) is not value:
                variable.set(value)
        return await result if inspect.isawaitable(result) else result


class Lifespan:
    """The handlers of one consumer, its start-up and shutdown functions, and its middleware."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []
        self.around: dict[type, list[Middleware]] = {Context: [], Batch: []}
        """Middleware by what it takes, from the outside in."""
        self._startup: list[_Function] = []
        self._shutdown: list[_Function] = []

    def on_startup(self, function: Function) -> Function:
        """Call ``function``, async or not, before anything is received; one that is not async in a thread.

        What it returns is given to each parameter annotated as its result is: of handlers, of shutdown functions, and
        of start-up functions declared later. Raises ``TypeError`` where another one returns the same type.
        """
        added = _function(function)
        if added.gives is not NoneType and any(added.gives == each.gives for each in self._startup):
            raise TypeError(f"{added.name} returns {_name(added.gives)}, as another start-up function does")
        self._startup.append(added)
        return function

    def on_shutdown(self, function: Function) -> Function:
        """Call ``function``, as at the start, after everything was settled; of several, the last declared one first."""
        self._shutdown.append(_function(function))
        return function

    def middleware(self, function: Middleware) -> Middleware:
        """Put ``async def function(context, call_next)`` around each call of a handler, the first declared outermost.

        One whose first parameter is annotated ``Batch`` is put around the calls of batch handlers, and around both with
        ``Context | Batch``. Raises ``TypeError``.
        """
        types, _ = types_of(function, kind="middleware")
        if not inspect.iscoroutinefunction(function) or len(types) != 3:  # with that of its result
            raise TypeError(f"middleware {function.__qualname__} must be async, and take a context and call_next")
        hint = next(iter(types.values()))
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        for subject in {Batch if (get_origin(kind) or kind) is Batch else Context for kind in kinds}:
            self.around[subject].append(function)
        return function

    def check(self, given: Iterable[Any] = ()) -> None:
        """Raise ``TypeError`` for a parameter whose type no start-up function returns, and ``given`` does not have.

        A start does so, too.
        """
        known = set(given)
        for each in self._startup:
            _check(f"start-up function {each.name}", each.takes.values(), known)
            known.add(each.gives)
        for handler in self.handlers:
            wanted = (hint for hint in handler.parameters if hint not in (PAYLOAD, Context))
            _check(f"handler {handler.function.__qualname__}", wanted, known)
        for each in self._shutdown:
            _check(f"shutdown function {each.name}", each.takes.values(), known)

    @asynccontextmanager
    async def entered(self, state: dict[Any, object]) -> AsyncIterator[None]:
        """Fill ``state`` by the start-up functions, but for the types that it has; at the end call the others.

        Shutdown functions are called in the reverse order; one that fails is logged, and those whose objects a failed
        start has not made are left out. Plain functions share a thread, but for one that a stop has left at work.
        """
        with closing(Threads("veilmq-lifespan", 2)) as threads:
            try:
                for each in self._startup:
                    if each.gives in state:
                        continue
                    made = await each.call(state, threads)
                    if made is not None and each.gives is NoneType:
                        raise TypeError(f"start-up function {each.name} returned something; annotate its result")
                    if each.gives is not NoneType:
                        state[each.gives] = made
                yield
            finally:
                for each in reversed(self._shutdown):
                    if state.keys() >= set(each.takes.values()):
                        try:
                            await each.call(state, threads)
                        except Exception:  # noqa: BLE001 - the others are called all the same
                            _log.exception("the shutdown function %s failed", each.name)


def _function(function: Callable[..., Any]) -> _Function:
    types, _ = types_of(function, kind="function")
    gives = types.pop("return")
    return _Function(function, types, NoneType if gives is inspect.Parameter.empty else gives)


def _check(what: str, wanted: Iterable[Any], known: set[Any]) -> None:
    for hint in wanted:
        if hint not in known:
            how = "declare one with @app.on_startup, and annotate its result so"
            raise TypeError(f"{what} takes {_name(hint)}, which no start-up function before it returns; {how}")


def _name(hint: Any) -> str:
    return getattr(hint, "__qualname__", repr(hint))
