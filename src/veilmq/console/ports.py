"""What the server provides to pages besides requests; ``server.console`` implements it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from veilmq.console.audit import AuditLog
from veilmq.console.live import Live
from veilmq.events import ProcessingTimes
from veilmq.wire.exchange import Caller


class ShownKey(msgspec.Struct, frozen=True, kw_only=True):
    """An access key: ``user`` is empty for the account itself, ``expires_at_s`` is since the epoch.

    A ``temporary`` key needs a session token with each request, and cannot sign in to the console.
    """

    id: str
    user: str
    expires_at_s: float | None
    expired: bool
    temporary: bool


Keys = Callable[[str], Sequence[ShownKey]]


class AllowedActions(Protocol):
    """Evaluates policies."""

    def __call__(
        self, caller: Caller, queue: str, policy: str, *, peer: str | None, program: str | None
    ) -> Sequence[tuple[str, bool]]:
        """Return all actions of SQS on ``queue``, which has this policy, each with whether ``caller`` may do it now.

        ``peer`` is the caller's address, ``program`` its user agent, for conditions.
        """


class HealthMetric(NamedTuple):
    """A metric of the store, as text."""

    text: str
    value: str


class ExportHealth(NamedTuple):
    """The numbers of events, and of failed exports."""

    recorded: int
    waiting: int
    dropped: int
    failures: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server, which is ready unless there are ``readiness_failures``; ``warnings`` are other problems.

    ``location`` completes the sentence "messages are kept ..."; ``queues`` is their number, ``None`` if unknown;
    ``exports`` is ``None`` if nothing is exported.
    """

    readiness_failures: list[str]
    warnings: list[str]
    location: str
    version: str
    python: str
    started_at_ms: int
    queues: int | None
    parked_polls: int
    open_connections: int
    exports: ExportHealth | None
    metrics: list[HealthMetric]


GetHealth = Callable[[], Awaitable[Health]]


class ShownSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting: its flag and environment variable, and its values as a person writes them."""

    name: str
    flag: str
    variable: str
    value: str
    default: str
    description: str

    @property
    def is_default(self) -> bool:
        return self.value == self.default


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A recommendation for a whole queue (``pipeline.tune.Recommendation`` has the same fields).

    ``current_s`` is the timeout when it was computed; ``recommended_s`` is ``None`` if there is no recommendation, and
    ``explore_s`` then a longer timeout to try, for more data.
    """

    queue: str
    current_s: int
    recommended_s: int | None
    explore_s: int | None
    change: bool
    confidence: str
    reason: str


class ProcessingHistory(Protocol):
    """Data from files: the exported event log, and recommendations of ``veilmq pipeline tune``."""

    async def processing_times(self, queue: str) -> ProcessingTimes | str:
        """Return the processing times of ``queue`` (a full name), or a sentence that says why they are unknown."""

    async def recommendation(self, queue: str) -> Recommendation | str:
        """Return the recommendation for ``queue``, or a sentence that says why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Each is for one or a few pages. ``keys`` is ``None`` without authentication."""

    audit: AuditLog
    health: GetHealth
    keys: Keys | None
    live: Live
    allowed_actions: AllowedActions
    history: ProcessingHistory
    settings: Sequence[ShownSetting]
