"""What pages are given by the server beside what they request as their caller; ``server.console`` makes it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from veilmq.console.audit import AuditLog
from veilmq.console.live import Live
from veilmq.events import ProcessingTimes
from veilmq.wire.exchange import Caller


class ShownKey(msgspec.Struct, frozen=True, kw_only=True):
    """One access key: ``user`` is empty for the account itself, ``expires_at_s`` is since the epoch.

    A ``temporary`` key needs a session token with each request, and cannot sign in here.
    """

    id: str
    user: str
    expires_at_s: float | None
    expired: bool
    temporary: bool


Keys = Callable[[str], Sequence[ShownKey]]
"""Tells the keys of an account."""


class May(Protocol):
    """Tells what a caller may do."""

    def __call__(
        self, caller: Caller, queue: str, policy: str, *, peer: str | None, program: str | None
    ) -> Sequence[tuple[str, bool]]:
        """Return each action of SQS on ``queue``, whose policy this is, and whether ``caller`` may do it now.

        ``peer`` is the address that he comes from, ``program`` what he uses (conditions may ask for both).
        """


class HealthFigure(NamedTuple):
    """One number that the store tells of itself: ``words`` say what it is, ``value`` is written out."""

    words: str
    value: str


class ExportHealth(NamedTuple):
    """How the event log is exported: events by their number."""

    recorded: int
    waiting: int
    dropped: int
    failures: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """One server at one moment. ``obstacles`` say why no requests should be sent here; without any it is ready.
    ``warnings`` say what is wrong all the same.

    ``kept`` follows the words "messages are kept"; ``queues`` is how many there are, ``None`` where the store does not
    say; ``exports`` is ``None`` where nothing is exported.
    """

    obstacles: list[str]
    warnings: list[str]
    kept: str
    version: str
    python: str
    started_at_ms: int
    queues: int | None
    parked_polls: int
    open_connections: int
    exports: ExportHealth | None
    figures: list[HealthFigure]


TellHealth = Callable[[], Awaitable[Health]]
"""Looks at the server now."""


class ShownSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: ``flag`` and ``variable`` are how it is given, ``value`` and ``default`` as a person writes them."""

    name: str
    flag: str
    variable: str
    value: str
    default: str
    description: str

    @property
    def is_default(self) -> bool:
        """Whether it is as it is without being given."""
        return self.value == self.default


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A recommendation for a queue as a whole (``pipeline.tune.Recommendation`` has the same names).

    ``current_s`` is the timeout that it was made for, ``recommended_s`` ``None`` where nothing can be said, and
    ``explore_s`` then a longer one that would show more.
    """

    queue: str
    current_s: int
    recommended_s: int | None
    explore_s: int | None
    change: bool
    confidence: str
    reason: str


class Past(Protocol):
    """Looks into what was: files that others write, the event log that the server exports and advice of ``tune``."""

    async def held_times(self, queue: str) -> ProcessingTimes | str:
        """Return how long receipts of ``queue`` (a full name) were held, or a sentence that says why nobody knows."""

    async def advice(self, queue: str) -> Advice | str:
        """Return what is recommended for ``queue``, or a sentence that says why nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Each is of one page, or few. ``keys`` is ``None`` where nobody is asked who he is."""

    audit: AuditLog
    health: TellHealth
    keys: Keys | None
    live: Live
    may: May
    past: Past
    settings: Sequence[ShownSetting]
