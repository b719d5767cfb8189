"""The port of stores of records: in memory, in a file, or what the user has (Redis, PostgreSQL).

A record says of one piece of work, named by a ``key``, that it is being done by an ``owner``, until its lease ends, or
that it was done, for as long as that is to be remembered. Life cycle::

    nothing --begin--> begun --finish--> done --time--> nothing
                       begun --forget, or time--> nothing

``begin`` decides between all who ask at once: it has to be atomic. Durations are seconds from the call on, so that only
the store's own clock counts. All methods may block, raise what they like, and are called by several threads at once.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Standing(Enum):
    """What ``begin`` has found."""

    OURS = "ours"
    """Nobody has done it or does it; it is begun now."""
    BUSY = "busy"
    """Somebody else does it."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer of ``begin``; ``left_s`` is how long a record that is BUSY or DONE lasts yet."""

    standing: Standing
    left_s: float = 0.0


class RecordStore(Protocol):
    """Keeps records. ``owner`` is a text that is new for each attempt."""

    def begin(self, key: str, *, owner: str, for_s: float) -> Begun:
        """Record that ``owner`` begins ``key``, for ``for_s`` seconds, unless it is done or being done. Atomic."""

    def extend(self, key: str, *, owner: str, for_s: float) -> bool:
        """Have the record last for ``for_s`` from now on; ``False``, and nothing changed, if it is not ``owner``'s."""

    def finish(self, key: str, *, for_s: float) -> None:
        """Record that ``key`` is done, whoever began it, and remember it for ``for_s``."""

    def forget(self, key: str, *, owner: str) -> None:
        """Remove the record if it is ``owner``'s: the work was not done, and anybody may begin it."""
