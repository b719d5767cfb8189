"""Looks that end when they have read enough: bodies may be long, and nobody else is served meanwhile."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_FIRST = 8

T = TypeVar("T")


def growing(count: int, bytes_max: int | None) -> Iterator[int]:
    """Yield how many messages to look at, more each time, up to ``count``; with no bound that at once."""
    some = count if bytes_max is None else _FIRST
    while some < count:
        yield some
        some *= 2
    yield count


def grown(count: int, bytes_max: int | None, look: Callable[[int], list[T]], body: Callable[[T], str]) -> list[T]:
    """Return what ``look`` finds, as far as the bodies are within ``bytes_max``; it is not asked for much more."""
    found: list[T] = []
    for some in growing(count, bytes_max):
        found = list(look(some))
        shown = list(within(bytes_max, found, body))
        if len(shown) < len(found) or len(found) < some:
            return shown
    return list(within(bytes_max, found, body))


def within(bytes_max: int | None, messages: Iterable[T], body: Callable[[T], str]) -> Iterator[T]:
    """Yield messages up to the one whose body brings all of them to ``bytes_max``; no more are asked for."""
    size_bytes = 0
    for message in messages:
        yield message
        text = body(message)
        size_bytes += len(text) if text.isascii() else len(text.encode())
        if bytes_max is not None and size_bytes >= bytes_max:
            return
