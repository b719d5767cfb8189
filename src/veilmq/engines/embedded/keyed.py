"""Rows found by their key alone: what the open batch has changed stands in a dictionary, the rest in the table.

So a row that changes several times in a batch is written once, and looking one up never writes what is staged.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import apsw

Key = tuple[int, ...] | tuple[bytes]
Row = tuple[Any, ...]


class Staged(Protocol):
    """Something with rows that are staged until the journal writes them."""

    def write(self) -> None:
        """Write what is staged into the open transaction."""

    def forget(self) -> None:
        """Go back to what was before the batch, which is rolled back."""


class KeyedTable:
    """One table whose rows begin with their keys; ``changed`` is called when the first change of a batch is staged."""

    __slots__ = ("_changed", "_connection", "_delete", "_put", "_select", "_staged")

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        put: str,
        delete: str,
        select: str,
        changed: Callable[[Staged], None],
    ) -> None:
        """The three are SQL: ``put`` takes a row, the others a key."""
        self._connection = connection
        self._put = put
        self._delete = delete
        self._select = select
        self._changed = changed
        self._staged: dict[Key, Row | None] = {}

    def put(self, key: Key, rest: Row) -> None:
        """Stage a row, new or in place of the one of the same key."""
        if not self._staged:
            self._changed(self)
        self._staged[key] = rest

    def remove(self, key: Key) -> None:
        """Stage that there is no row of that key."""
        if not self._staged:
            self._changed(self)
        self._staged[key] = None

    def get(self, key: Key) -> Row | None:
        """Return what stands behind the key, ``None`` when there is no such row."""
        try:
            return self._staged[key]
        except KeyError:
            found: Row | None = self._connection.execute(self._select, key).fetchone()
            return found

    def write(self) -> None:
        """Write what is staged into the open transaction."""
        staged, self._staged = self._staged, {}
        rows: list[Sequence[Any]] = [(*key, *rest) for key, rest in staged.items() if rest is not None]
        gone = [key for key, rest in staged.items() if rest is None]
        if rows:
            self._connection.executemany(self._put, rows)
        if gone:
            self._connection.executemany(self._delete, gone)

    def forget(self) -> None:
        """Drop what is staged."""
        self._staged = {}
