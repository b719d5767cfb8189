"""From store time to shown time: where results leave the engine, and nowhere else.

Inside the engine every instant is store time. In a result, the fields whose names end in ``_at_ms`` or ``_until_ms``
are what users see; ``next_due_ms`` is for timers and stays. A page of a claim is left as it is: what a claim has must
be the same whenever it is read, so it was made with the difference of the claim's binding (``claim_reads``).
"""

from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from veilmq.core.claims import ClaimPage

_INSTANTS = ("_at_ms", "_until_ms")

Row = TypeVar("Row")


class _Plan(NamedTuple):
    """The fields of a type of results that are instants, and those that have results inside."""

    instants: tuple[str, ...]
    inside: tuple[str, ...]


class ShownTimes:
    """What shown times are ahead of store time in the present batch; called with a result, it returns it as shown."""

    __slots__ = ("_plans", "ahead_ms")

    def __init__(self) -> None:
        """Show store time itself."""
        self.ahead_ms = 0
        self._plans: dict[type, _Plan] = {ClaimPage: _Plan((), ())}

    def __call__(self, result: Any) -> Any:
        """Return ``result`` with shown times."""
        if isinstance(result, list):
            return [self(each) for each in result]
        if not isinstance(result, Struct):
            return result
        kind = type(result)
        plan = self._plans.get(kind)
        if plan is None:
            plan = self._plans[kind] = _planned(kind)
        changed: dict[str, Any] = {name: later(getattr(result, name), self.ahead_ms) for name in plan.instants}
        for name in plan.inside:
            changed[name] = self(getattr(result, name))
        return replace(result, **changed) if changed else result


def _planned(kind: type) -> _Plan:
    hints = get_type_hints(kind)
    instants = tuple(name for name in hints if name.endswith(_INSTANTS))
    inside = tuple(name for name, hint in hints.items() if any(map(_is_result, (hint, *get_args(hint)))))
    return _Plan(instants, inside)


def _is_result(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


def later(at_ms: int | None, ahead_ms: int) -> int | None:
    """Return an instant ``ahead_ms`` later; 0 is none, as ``None`` is."""
    return at_ms + ahead_ms if at_ms else at_ms


def later_row(row: Row, ahead_ms: int) -> Row:
    """Return a row of a copy, a named tuple, with its instants ``ahead_ms`` later."""
    fields: Any = row
    names = [name for name in fields._fields if name.endswith(_INSTANTS)]
    made: Row = fields._replace(**{name: later(getattr(row, name), ahead_ms) for name in names})
    return made
