"""Handlers and their options, hooks, start-up and shutdown functions, and middleware.

A handler is a plain function; the types of its parameters select payload, context and dependencies.
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
from veilmq.consumer.records import ByKey, refuse_async
from veilmq.consumer.renewal_policies import Adaptive, Fixed, RenewalPolicy
from veilmq.core.limits import LEASE_S_MAX, SQS_RECEIVE_WAIT_S
from veilmq.core.messages import Attribute
from veilmq.wire.sqs.names import is_fifo

_log = logging.getLogger("veilmq.consumer")


HOOKS = ("receive", "start", "settle", "renew", "suspect", "lost", "ending", "release")

Hook = Callable[..., Any]


class Hooks:
    """Functions by the event that calls them; those of ``parent`` are called first, even if added later."""

    def __init__(self, parent: "Hooks | None" = None) -> None:
        self._parent = parent
        self._hooks: dict[str, list[Hook]] = {}

    def add(self, name: str, hook: Hook) -> None:
        """Call ``hook`` at each event ``name``. Raises ``ValueError`` for an unknown name, ``TypeError`` for async."""
        refuse_async("hook", hook)
        if name not in HOOKS:
            raise ValueError(f"there is no hook {name!r}; there are {', '.join(HOOKS)}")
        self._hooks.setdefault(name, []).append(hook)

    def has(self, name: str) -> bool:
        """Return whether event ``name`` has a hook."""
        return name in self._hooks or (self._parent is not None and self._parent.has(name))

    def call(self, name: str, *arguments: object) -> None:
        """Call the hooks of event ``name``; their errors are only logged."""
        if self._parent is not None:
            self._parent.call(name, *arguments)
        for hook in self._hooks.get(name, ()):
            try:
                hook(*arguments)
            except Exception:  # noqa: BLE001 - a hook may raise anything
                _log.exception("the hook %r for %r failed", hook, name)


# Payloads
#
# ``str`` (or no annotation) is the body, ``bytes`` its UTF-8, ``ReceivedMessage`` the whole message. A subclass of
# ``str`` is made from the body. Pydantic's classes parse the body; for all other types (dataclasses, msgspec structs,
# typed dicts, lists …) msgspec decodes JSON.

Decode = Callable[[ReceivedMessage], Any]


def decoder(annotation: Any) -> Decode:
    """Return a function from a message to ``annotation``, which raises ``Undecodable``.

    Raises ``TypeError`` for types that JSON cannot represent.
    """
    kind = _underlying(annotation)
    if kind in _PLAIN and (kind is annotation or kind is not str):
        return _PLAIN[kind]
    if inspect.isclass(kind) and issubclass(kind, str):
        read: Any = partial(msgspec.convert, type=annotation) if kind is str else kind
    elif hasattr(kind, "__pydantic_validator__"):
        read = lambda body: kind.__pydantic_validator__.validate_json(body)  # noqa: E731, PLW0108 - it may not be built yet
    else:
        msgspec.json.schema(annotation, schema_hook=_any_json)
        read = msgspec.json.Decoder(annotation).decode

    def decode(message: ReceivedMessage) -> Any:
        try:
            return read(message.body)
        except (ValueError, TypeError, RecursionError) as error:  # both libraries' errors are ValueErrors
            raise Undecodable(f"The body does not match the handler's type: {error}") from error

    return decode


def _underlying(annotation: Any) -> Any:
    """Return the type behind aliases, ``NewType`` and ``Annotated``."""
    for name in ("__value__", "__supertype__", "__origin__" if hasattr(annotation, "__metadata__") else ""):
        if (inner := getattr(annotation, name, None)) is not None:
            return _underlying(inner)
    return annotation


def _any_json(kind: Any) -> dict[str, Any]:
    """Return a schema for a class that msgspec does not know. Raises ``TypeError`` if no value of JSON is of it."""
    if not isinstance({}, found := get_origin(kind) or kind) and not isinstance([], found):
        raise TypeError(f"a body cannot be decoded to {kind!r}; a model of pydantic must be the whole payload")
    return {"type": "object"}


_PLAIN: dict[Any, Decode] = {
    inspect.Parameter.empty: lambda message: message.body,
    Any: lambda message: message.body,
    str: lambda message: message.body,
    bytes: lambda message: message.body.encode(),
    ReceivedMessage: lambda message: message,
}


def body_of(payload: Any) -> str:
    """Encode ``payload`` as handlers decode it. Raises ``TypeError`` if JSON cannot represent it."""
    if isinstance(payload, str):
        return str.__str__(payload)  # of a subclass, too
    if isinstance(payload, bytes):
        return payload.decode()
    dump = getattr(payload, "model_dump_json", None)  # pydantic's
    return dump() if dump is not None else msgspec.json.encode(payload).decode()


def attributes_of(attributes: Mapping[str, Attribute | str]) -> dict[str, Attribute]:
    """Return attributes with each ``str`` as an attribute of type ``String``."""
    return {
        name: Attribute(type="String", text=value) if isinstance(value, str) else value
        for name, value in attributes.items()
    }


PoolName = Literal["async", "thread", "process"]
OnLost = Literal["cancel", "continue"] | Callable[[Context], object]

OUTSTANDING_BYTES_MAX = 100 * 1024 * 1024
"""The default for one handler, as in the clients of Google Pub/Sub."""


class HandlerOptions(TypedDict, total=False):
    """Options of ``Consumer.handler`` and ``Consumer.batch``, described in ``docs/consumer.md``."""

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
    """Validated ``HandlerOptions``, with durations in seconds."""

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
    """Return ``value``. Raises ``ValueError`` unless it is from ``least`` to ``most``."""
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
    if hasattr(lease, "renew_at_s"):  # a RenewalPolicy
        return lease
    return Adaptive() if lease == "auto" else Fixed(lease)


def _backoff(name: str, retry: Any) -> Backoff:
    if not isinstance(retry, Backoff):
        raise ValueError(f"{name} is {retry!r}; it must be a Backoff, such as Backoff('5s')")
    return retry


_FIELDS = {"wait": "wait_s", "timeout": "timeout_s", "stall": "stall_s", "lease": "policy"}
_VALIDATE: dict[str, Callable[[str, Any], object]] = {
    "concurrency": partial(checked, 1, math.inf),
    "prefetch": partial(checked, 0, math.inf),
    "max_outstanding_bytes": partial(checked, 1, math.inf),
    "polls": partial(checked, 1, math.inf),
    "wait": lambda name, wait: checked(1, SQS_RECEIVE_WAIT_S.maximum, name, int(span_s(wait))),
    "timeout": _timeout_s,
    "stall": _timeout_s,
    "lease": _policy,
    "retry": _backoff,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Limits of a batch; messages with different results of ``key`` do not share one."""

    size_max: int
    linger_s: float
    key: Callable[[Any], object] | None = None


PAYLOAD = object()
"""The payload, among the types of a handler's parameters."""

State = Mapping[Any, object]
"""The results of start-up functions by type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """``function`` with the types of its parameters: ``PAYLOAD``, ``Context``, or a key of ``State``.

    Keyword-only parameters come last; ``keywords`` has their names.
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
        """Call the function for a message, which is decoded here, or for a batch, and return its result."""
        payload = self.decode(subject.message) if isinstance(subject, Context) else subject
        arguments = [
            payload if hint is PAYLOAD else subject if hint is Context else state[hint] for hint in self.parameters
        ]
        if not self.keywords:
            return self.function(*arguments)
        split = len(arguments) - len(self.keywords)
        return self.function(*arguments[:split], **dict(zip(self.keywords, arguments[split:], strict=True)))


def types_of(function: Callable[..., Any], *, kind: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the types of the parameters without defaults by name, and the names of the keyword-only ones.

    ``"return"`` has the type of the result. Raises ``TypeError`` for annotations that cannot be resolved where
    ``function`` is declared; ``kind``, such as "handler", is for the error.
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
    """Return ``function`` as a handler; ``given`` has the queue and other options.

    Raises ``TypeError`` for a signature that does not fit and for an unknown option, ``ValueError`` for an invalid
    option.
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
    with_metadata = get_type_hints(function, include_extras=True)
    payload, hints[payload_at] = with_metadata.get([*types][payload_at], hints[payload_at]), PAYLOAD
    if batching is not None:  # Batch[T] -> T
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
        _FIELDS.get(name, name): _VALIDATE[name](name, value) if name in _VALIDATE else value
        for name, value in given.items()
        if value is not None
    }
    values["pool"] = _pool(function, values.get("pool"))
    options = Options(**values)
    if batching is not None and is_fifo(options.queue):
        raise ValueError("a FIFO queue's messages are handled one by one; use @app.handler")
    if batching is not None and options.pool == "process":
        raise ValueError("a batch handler runs in the async or the thread pool")
    refuse_async("on_lost", options.on_lost)
    if options.kill_on_lost and options.pool != "process":
        raise ValueError("kill_on_lost needs pool='process': neither a task nor a thread can be killed")
    if not callable(options.on_lost) and options.on_lost not in ("cancel", "continue"):
        raise ValueError(f'on_lost is {options.on_lost!r}; use "cancel", "continue", or a function')
    return options


def _pool(function: Callable[..., Any], pool: Any) -> Any:
    """Return the pool for ``function``. Raises ``ValueError`` if the requested one cannot run it."""
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


# Start-up and shutdown functions, middleware

Function = TypeVar("Function", bound=Callable[..., Any])

CallNext = Callable[[], Awaitable[None]]
"""Runs the remaining middleware and the handler; raises their errors, and the outcome that a handler returned."""
Middleware = Callable[[Any, CallNext], Awaitable[object]]


class _Function(NamedTuple):
    function: Callable[..., Any]
    parameters: Mapping[str, Any]
    result: Any

    @property
    def name(self) -> str:
        return self.function.__qualname__

    async def call(self, state: State, threads: Threads) -> Any:
        arguments = {name: state[hint] for name, hint in self.parameters.items()}

        def call() -> Any:
            try:
                return self.function(**arguments)
            except StopIteration as error:  # a future cannot raise it
                raise RuntimeError(f"{self.name} raised StopIteration") from error

        if inspect.iscoroutinefunction(self.function):
            return await call()
        context = copy_context()
        result = await threads.run(context.run, call)
        for variable, value in context.items():  # keep the context variables that the function set
            if variable.get(variable) is not value:
                variable.set(value)
        return await result if inspect.isawaitable(result) else result


class Lifespan:
    """The handlers of one consumer, its start-up and shutdown functions, and its middleware."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []
        self.middleware_of: dict[type, list[Middleware]] = {Context: [], Batch: []}  # outermost first
        self._startup: list[_Function] = []
        self._shutdown: list[_Function] = []

    def on_startup(self, function: Function) -> Function:
        """Call ``function`` before the first receive; in a thread unless it is async.

        Its result is passed to each parameter with the type of the result: of handlers, of shutdown functions, and of
        start-up functions declared later. Raises ``TypeError`` if another start-up function returns the same type.
        """
        added = _function(function)
        if added.result is not NoneType and any(added.result == each.result for each in self._startup):
            raise TypeError(f"{added.name} returns {_name(added.result)}, as another start-up function does")
        self._startup.append(added)
        return function

    def on_shutdown(self, function: Function) -> Function:
        """Call ``function`` after all messages are settled, the last declared first; in a thread unless it is async."""
        self._shutdown.append(_function(function))
        return function

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap each call of a handler in ``async def function(context, call_next)``; the first declared is outermost.

        If the first parameter is annotated ``Batch``, it wraps calls of batch handlers; ``Context | Batch`` wraps both.
        Raises ``TypeError``.
        """
        types, _ = types_of(function, kind="middleware")
        if not inspect.iscoroutinefunction(function) or len(types) != 3:  # context, call_next, return
            raise TypeError(f"middleware {function.__qualname__} must be async, and take a context and call_next")
        hint = next(iter(types.values()))
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        for subject in {Batch if (get_origin(kind) or kind) is Batch else Context for kind in kinds}:
            self.middleware_of[subject].append(function)
        return function

    def check(self, given: Iterable[Any] = ()) -> None:
        """Raise ``TypeError`` for a parameter whose type is neither in ``given`` nor returned by a start-up function.

        A start also checks this.
        """
        available = set(given)
        for each in self._startup:
            _check(f"start-up function {each.name}", each.parameters.values(), available)
            available.add(each.result)
        for handler in self.handlers:
            required = (hint for hint in handler.parameters if hint not in (PAYLOAD, Context))
            _check(f"handler {handler.function.__qualname__}", required, available)
        for each in self._shutdown:
            _check(f"shutdown function {each.name}", each.parameters.values(), available)

    @asynccontextmanager
    async def started(self, state: dict[Any, object]) -> AsyncIterator[None]:
        """Call the start-up functions for the types that ``state`` lacks; at the end call the shutdown functions.

        Errors of shutdown functions are logged. A shutdown function is skipped if a failed start did not create its
        objects. Plain functions run in one thread; the second is for a shutdown while a start-up function still runs.
        """
        with closing(Threads("veilmq-lifespan", 2)) as threads:
            try:
                for each in self._startup:
                    if each.result in state:
                        continue
                    result = await each.call(state, threads)
                    if result is not None and each.result is NoneType:
                        raise TypeError(f"start-up function {each.name} returned something; annotate its result")
                    if each.result is not NoneType:
                        state[each.result] = result
                yield
            finally:
                for each in reversed(self._shutdown):
                    if state.keys() >= set(each.parameters.values()):
                        try:
                            await each.call(state, threads)
                        except Exception:  # noqa: BLE001 - call the remaining functions
                            _log.exception("the shutdown function %s failed", each.name)


def _function(function: Callable[..., Any]) -> _Function:
    types, _ = types_of(function, kind="function")
    result = types.pop("return")
    return _Function(function, types, NoneType if result is inspect.Parameter.empty else result)


def _check(what: str, required: Iterable[Any], available: set[Any]) -> None:
    for hint in required:
        if hint not in available:
            fix = "declare one with @app.on_startup, and annotate its result so"
            raise TypeError(f"{what} takes {_name(hint)}, which no start-up function before it returns; {fix}")


def _name(hint: Any) -> str:
    return getattr(hint, "__qualname__", repr(hint))
