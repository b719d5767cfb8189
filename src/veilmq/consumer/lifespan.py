"""What surrounds handlers: functions at start-up and shutdown, the objects that they share, and middleware."""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from contextvars import copy_context
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin

from veilmq.consumer.clock import Threads
from veilmq.consumer.context import Batch, Context
from veilmq.consumer.handlers import PAYLOAD, Handler, State, types_of

_log = logging.getLogger("veilmq.consumer")

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

        in_loop = inspect.iscoroutinefunction(self.function)
        result = call() if in_loop else await threads.run(copy_context().run, call)
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
