"""Batches: several messages for one call of a handler, each with an end of its own."""

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from veilmq.consumer.context import Context
from veilmq.consumer.outcomes import Outcome

T = TypeVar("T")


class Item(Generic[T]):
    """One message of a batch."""

    __slots__ = ("body", "context", "outcome")

    def __init__(self, body: T, context: Context) -> None:
        """It succeeds unless it is told to fail."""
        self.body = body
        self.context = context
        self.outcome: Outcome | None = None

    def fail(self, outcome: Outcome) -> None:
        """End this message by ``outcome``; the others are not touched."""
        self.outcome = outcome


class Batch(Sequence[Item[T]]):
    """What a batch handler takes. When it returns, all that did not ``fail`` are done; when it raises, none is."""

    def __init__(self, items: Sequence[Item[T]]) -> None:
        """``items`` in the order of arrival."""
        self._items = tuple(items)

    @property
    def bodies(self) -> list[T]:
        """The payloads, in order."""
        return [item.body for item in self._items]

    def __len__(self) -> int:
        """Return how many items there are."""
        return len(self._items)

    def __iter__(self) -> Iterator[Item[T]]:
        """Go through the items in order."""
        return iter(self._items)

    def __getitem__(self, place: int) -> Item[T]:  # type: ignore[override]  # no slices
        """Return one item."""
        return self._items[place]
