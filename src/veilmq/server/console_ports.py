"""What single pages of the console are told of the server: its health, its settings, and who may do what."""

import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from veilmq import __version__
from veilmq.console.access import ShownKey
from veilmq.console.audit import AuditLog
from veilmq.console.health import ExportHealth, Health, HealthFigure, TellHealth
from veilmq.console.live import Live
from veilmq.console.ports import Ports
from veilmq.console.shown_settings import ShownSetting
from veilmq.core.errors import VeilmqError
from veilmq.core.events import CountEvents, EventCounts
from veilmq.server.authentication import Authentication
from veilmq.server.connections import Connections
from veilmq.server.event_exports import EventExports
from veilmq.server.longpoll import LongPolls
from veilmq.server.obstacles import obstacles
from veilmq.server.past_receipts import PastReceipts
from veilmq.server.security import Security
from veilmq.server.settings import MEMORY, SETTINGS, ServerSettings, Setting
from veilmq.store.port import Figure, Series, Store, execute
from veilmq.store.urls import without_passwords

_MILLISECOND_S = 0.001
_SECRET_OPTION = re.compile(r"(?<=[?&])([^=&\s]*(?:key|pass|secret|sig|token)[^=&\s]*)=[^&\s]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePorts:
    """Looks at one server for its console, and changes nothing."""

    settings: ServerSettings
    guard: Security
    engine: Store
    polls: LongPolls
    connections: Connections
    exports: EventExports | None

    def of_pages(self, *, audit: AuditLog, live: Live) -> Ports:
        """Return what pages are told, with the log of their changes and the streams of those that are open."""
        authentication = self.guard.authentication
        return Ports(
            audit=audit,
            health=self._teller(self.engine.clock.now_ms()),
            keys=None if authentication is None else keys_of(authentication, self.guard.wall_s),
            live=live,
            may=self.guard.judge.verdicts,
            past=PastReceipts(
                events_to=self.settings.events_to,
                recommendations=self.settings.recommendations,
                clock=self.engine.clock,
            ),
            settings=shown_settings(self.settings),
        )

    def _teller(self, started_at_ms: int) -> TellHealth:
        async def health() -> Health:
            survey = await _if_told(self.engine.survey(0))
            return Health(
                obstacles=await obstacles(self.connections, self.engine),
                warnings=list(self.engine.warnings()),
                kept=self.engine.kept,
                version=__version__,
                python=platform.python_version(),
                started_at_ms=self.engine.clock.shown_ms(started_at_ms),
                queues=None if survey is None else survey.in_all,
                parked_polls=self.polls.parked,
                open_connections=len(self.connections),
                exports=await self._export_health(),
                figures=[told for figure in self.engine.figures() for told in _in_words(figure)],
            )

        return health

    async def _export_health(self) -> ExportHealth | None:
        if self.exports is None:
            return None
        counts: EventCounts | None = await _if_told(execute(self.engine, CountEvents()))
        if counts is None:
            return None
        return ExportHealth(counts.recorded, counts.waiting, counts.dropped, self.exports.failures)


async def _if_told(question: Any) -> Any:
    """Return the answer; ``None`` where the store gives none, which is no reason to say nothing of the rest."""
    try:
        return await question
    except VeilmqError:
        return None


def _in_words(figure: Figure) -> Iterator[HealthFigure]:
    words = figure.text.rstrip(".")
    for label, value in figure.samples.items():
        yield HealthFigure(f"{words} ({label})" if label else words, _value(value))


def _value(value: float | Series) -> str:
    if not isinstance(value, Series):
        return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
    if not value.count:
        return "0"
    return f"{value.count:,}, {value.seconds / value.count / _MILLISECOND_S:,.1f} ms each"


def shown_settings(settings: ServerSettings) -> list[ShownSetting]:
    """Return every setting as the server runs with it; passwords in URLs are stars, and no file is opened."""
    return [_shown(row, settings) for row in SETTINGS]


def _shown(row: Setting, settings: ServerSettings) -> ShownSetting:
    value = settings.data is None and settings.store is None if row is MEMORY else getattr(settings, row.name)
    return ShownSetting(
        name=row.name,
        flag=row.flag,
        variable=row.variable,
        value="none" if value is None else _written(value),
        default=row.default_text,
        description=row.description,
    )


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return _SECRET_OPTION.sub(r"\1=***", without_passwords(str(value)))


def keys_of(authentication: Authentication, wall_s: Callable[[], float]) -> Callable[[str], list[ShownKey]]:
    """Return what tells the keys of an account, by user and id."""

    def keys(account: str) -> list[ShownKey]:
        now_s = wall_s()
        found = [
            ShownKey(
                id=key.id,
                user=key.caller.user,
                expires_at_s=key.expires_at_s,
                expired=key.expires_at_s is not None and key.expires_at_s <= now_s,
                temporary=key.session_token is not None,
            )
            for key in authentication.keys
            if key.caller.account == account
        ]
        return sorted(found, key=lambda key: (key.user, key.id))

    return keys
