"""What surrounds handlers: functions at start-up and shutdown, the objects that they share, and middleware.

What a start-up function returns is given, until the shutdown, to each parameter that is annotated by its type: of
handlers, of shutdown functions, and of start-up functions that are declared after it. Middleware is declared from the
outside in: the first one begins first and ends last.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from veilmq.consumer.context import Batch, Context
from veilmq.consumer.handlers import Handler, State, types_of

_log = logging.getLogger("veilmq.consumer")

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

    async def call(self, state: State) -> Any:
        result = self.function(**{name: state[hint] for name, hint in self.takes.items()})
        return await result if inspect.isawaitable(result) else result


class Lifespan:
    """The start-up and shutdown functions of one consumer, and its middleware."""

    def __init__(self) -> None:
        self._startup: list[_Function] = []
        self._shutdown: list[_Function] = []
        self._middleware: list[tuple[Middleware, frozenset[type]]] = []

    def add_startup(self, function: Callable[..., Any]) -> None:
        """Call ``function`` at the start; raises ``TypeError`` where another one gives the same type."""
        added = _function(function)
        if added.gives is not NoneType and added.gives in self._given():
            raise TypeError(f"{added.name} returns {_name(added.gives)}, as another start-up function does")
        self._startup.append(added)

    def add_shutdown(self, function: Callable[..., Any]) -> None:
        """Call ``function`` at the end."""
        self._shutdown.append(_function(function))

    def add_middleware(self, middleware: Middleware) -> None:
        """Put ``middleware`` around the calls of handlers, inside of what was added before; raises ``TypeError``."""
        types, _ = types_of(middleware, kind="middleware")
        if not inspect.iscoroutinefunction(middleware) or len(types) != 3:  # with that of its result
            raise TypeError(f"middleware {middleware.__qualname__} must be async, and take a context and call_next")
        hint = next(iter(types.values()))
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        wanted = frozenset(Batch if (get_origin(kind) or kind) is Batch else Context for kind in kinds)
        self._middleware.append((middleware, wanted))

    def middleware_of(self, handler: Handler) -> list[Middleware]:
        """Return what surrounds the calls of ``handler``, from the outside in."""
        subject = Context if handler.batching is None else Batch
        return [middleware for middleware, wanted in self._middleware if subject in wanted]

    def check(self, handlers: Sequence[Handler], given: Iterable[Any] = ()) -> None:
        """Raise ``TypeError`` for a parameter whose type no start-up function returns, and ``given`` does not have."""
        known = set(given)
        for each in self._startup:
            _check(f"start-up function {each.name}", each.takes.values(), known)
            known.add(each.gives)
        for handler in handlers:
            _check(f"handler {handler.function.__qualname__}", handler.dependencies, known)
        for each in self._shutdown:
            _check(f"shutdown function {each.name}", each.takes.values(), known)

    @asynccontextmanager
    async def entered(self, state: dict[Any, object]) -> AsyncIterator[None]:
        """Fill ``state`` by the start-up functions, but for the types that it has; at the end call the others.

        Shutdown functions are called in the reverse order; one that fails is logged, and those whose objects a failed
        start has not made are left out.
        """
        try:
            for each in self._startup:
                if each.gives in state:
                    continue
                made = await each.call(state)
                if made is not None and each.gives is NoneType:
                    raise TypeError(f"start-up function {each.name} returned something; annotate its result")
                if each.gives is not NoneType:
                    state[each.gives] = made
            yield
        finally:
            for each in reversed(self._shutdown):
                if state.keys() >= set(each.takes.values()):
                    try:
                        await each.call(state)
                    except Exception:  # noqa: BLE001 - the others are called all the same
                        _log.exception("the shutdown function %s failed", each.name)

    def _given(self) -> set[Any]:
        return {each.gives for each in self._startup}


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
