"""An engine as a server has it: opened, closed, asked what is wrong with it and how much there is in it.

This is all that a server knows of where its messages are kept; the one place that knows which kinds of store there are
opens one (``server/opening.py``).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from veilmq.core.ports import Clock, Engine
from veilmq.engines.figures import Figure

FAILED = "The store has failed; the process is about to end, and recovers when it is started again."
FULL = "The store is full: sends are refused until disk space is freed or queues are drained."
UNREACHABLE = "The database cannot be reached; the server goes on by itself as soon as it can."

NOTHING_HELD_BACK = "The clock is trusted: nothing is held back."

STANDBY = "The database is a standby, which keeps nothing; the server goes on as soon as it is the primary."


class StoreError(Exception):
    """The store cannot be opened; the text says why and what to do."""


class Survey(NamedTuple):
    """The full names of some queues, in order, and how many there are."""

    names: list[str]
    in_all: int


class Store(Engine, Protocol):
    """An open engine, and what its server asks of it beyond commands."""

    @property
    def clock(self) -> Clock:
        """Return the time of this store: what is due is due by this clock."""

    @property
    def kept(self) -> str:
        """Return where messages are kept, as words that follow "messages are kept"; never a secret."""

    async def obstacles(self) -> list[str]:
        """Return why no requests should be sent here, nothing when they should."""

    def warnings(self) -> Sequence[str]:
        """Return what is wrong although requests are answered: sentences that say what to do."""

    async def trust_clock(self) -> str:
        """Take the present time for right, as an operator says it is; return what that changed, as a sentence.

        Raises ``VeilmqError``.
        """

    def figures(self) -> Sequence[Figure]:
        """Return what the store tells of itself to whoever watches."""

    async def survey(self, names_max: int) -> Survey:
        """Return the first ``names_max`` queues of all accounts by name; raises ``VeilmqError``."""

    async def keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return what is kept under ``name`` (a file's) for all servers, what ``make`` gives where nothing is.

        Raises ``StoreError`` or ``VeilmqError``.
        """

    async def answered(self) -> None:
        """Return when all that was submitted so far, and what that led to, has been answered."""

    async def close(self) -> None:
        """Answer what was submitted, refuse what comes, and let go of the store."""
