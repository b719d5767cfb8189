"""The console in the server: what its pages show, and how they send requests.

Processing-time histories and recommendations are read from Parquet files in a thread, one queue at a time, and cached
for ``CACHED_MS``. Reading them needs pyarrow, an extra.
"""

import asyncio
import platform
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator
from hashlib import sha256
from hmac import digest
from importlib import import_module
from pathlib import Path
from secrets import token_bytes
from typing import Any, TypeVar, cast

import msgspec
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from veilmq import __version__
from veilmq.console.audit import Auditing, AuditLog
from veilmq.console.live import Live
from veilmq.console.ports import ExportHealth, Health, HealthMetric, Ports, Recommendation, ShownKey, ShownSetting
from veilmq.console.sign_ins import SignIns
from veilmq.core.commands import Clock
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.receipts import CountEvents, EventCounts
from veilmq.events import ProcessingTimes
from veilmq.server.admin_api import AdminApi, AdminContext
from veilmq.server.authentication import Authentication
from veilmq.server.settings import MEMORY, SETTINGS, ServerSettings, as_written
from veilmq.store.port import Histogram, Metric, SurveyQueues, execute
from veilmq.store.urls import without_passwords

_SECRET_OPTION = re.compile(r"(?<=[?&])([^=&\s]*(?:key|pass|secret|sig|token)[^=&\s]*)=[^&\s]*", re.IGNORECASE)


T = TypeVar("T")


async def or_none(work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result; ``None`` if the store fails, so that the rest is still shown."""
    try:
        return await work
    except VeilmqError:
        return None


def _health_metrics(metrics: Iterable[Metric]) -> Iterator[HealthMetric]:
    for metric in metrics:
        words = metric.text.rstrip(".")
        for label, value in metric.samples.items():
            if not isinstance(value, Histogram):
                text = f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
            elif value.count:
                text = f"{value.count:,}, {value.seconds / value.count * SECOND_MS:,.1f} ms each"
            else:
                text = "0"
            yield HealthMetric(f"{words} ({label})" if label else words, text)


def shown_settings(settings: ServerSettings) -> list[ShownSetting]:
    """Return all settings in use; passwords in URLs are masked, and no file is opened."""
    shown = []
    for row in SETTINGS:
        value = settings.data is None and settings.store is None if row is MEMORY else getattr(settings, row.name)
        shown.append(
            ShownSetting(
                name=row.name,
                flag=row.flag,
                variable=row.variable,
                value=_SECRET_OPTION.sub(r"\1=***", without_passwords(as_written(value))),
                default=row.default_text,
                description=row.description,
            )
        )
    return shown


def _keys_of(authentication: Authentication, account: str) -> list[ShownKey]:
    keys = [
        ShownKey(
            id=key.id,
            user=key.caller.user,
            expires_at_s=key.expires_at_s,
            expired=authentication.caller_of(key.id) is None,
            temporary=key.session_token is not None,
        )
        for key in authentication.keys
        if key.caller.account == account
    ]
    return sorted(keys, key=lambda key: (key.user, key.id))


MISSING = "The console is not installed: pip install 'veilmq[console]'.\n"


class ConsoleService:
    """The console of a server: ``api`` and ``pages`` are ASGI applications.

    ``live`` has the event streams of open pages, which end when it is closed.
    """

    def __init__(self, server: AdminContext) -> None:
        self._server = server
        settings, authentication, engine = server.settings, server.security.authentication, server.engine
        audit_file = settings.audit_log
        if audit_file is None and settings.data is not None and settings.store is None:
            audit_file = settings.data / "audit.jsonl"
        audit = AuditLog(audit_file)
        self._auditing = Auditing(server.send_request, audit, now_ms=engine.clock.shown_ms, account=settings.account)
        self.live = Live(engine.clock)
        sign_ins = None if authentication is None else SignIns(authentication.sign_in, now_ms=engine.clock.now_ms)
        ports = Ports(
            audit=audit,
            health=self.health,
            keys=None if authentication is None else lambda account: _keys_of(authentication, account),
            live=self.live,
            allowed_actions=server.decisions.by_action,
            history=ProcessingHistory(settings, engine.clock),
            settings=shown_settings(settings),
        )
        console = self._console(sign_ins, ports)
        session_of = None if console is None else console.session_of
        self.api: ASGIApp = AdminApi(server, auditing=self._auditing, sign_ins=sign_ins, session_of=session_of)
        self.pages: ASGIApp = PlainTextResponse(MISSING, status_code=501) if console is None else console.app

    def _console(self, sign_ins: SignIns | None, ports: Ports) -> Any:
        """Return the console, ``None`` if the extra ``console`` is not installed: queues are served anyway."""
        try:
            console: Any = import_module("veilmq.console.app")
            sessions: Any = import_module("veilmq.console.sessions")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "veilmq":
                raise  # a defect, not a missing extra
            return None
        server = self._server
        accounts, options, authentication, engine = None, {}, server.security.authentication, server.engine
        if authentication is not None:
            accounts = sessions.Accounts(sign_in=sign_ins, caller_of=authentication.caller_of)
            options["secret_digest"] = authentication.secret_digest
            if server.settings.store is None:  # sign-outs are not stored, so a restart ends all sessions
                process_secret = token_bytes(32)
                options["secret_digest"] = lambda key_id: authentication.secret_digest(key_id) + process_secret
        secret, wall_s = digest(engine.token_key, b"console sessions", sha256), server.security.wall_s
        return console.Console(
            send_request=self._auditing,
            sessions=sessions.Sessions(secret=secret, wall_s=wall_s, **options),
            account=server.settings.account,
            data_port=server.data_port,
            now_ms=engine.clock.shown_ms,
            accounts=accounts,
            ports=ports,
        )

    async def health(self) -> Health:
        """Return the data of the health page."""
        server, engine, exports = self._server, self._server.engine, None
        survey = await or_none(execute(engine, SurveyQueues(names_max=0)))
        if server.exports is not None:
            counts: EventCounts | None = await or_none(execute(engine, CountEvents()))
            if counts is not None:
                exports = ExportHealth(counts.recorded, counts.waiting, counts.dropped, server.exports.failures)
        return Health(
            readiness_failures=await server.readiness_failures(),
            warnings=list(engine.warnings()),
            location=engine.location,
            version=__version__,
            python=platform.python_version(),
            started_at_ms=engine.clock.shown_ms(server.started_at_ms),
            queues=None if survey is None else survey.in_all,
            parked_polls=server.polls.parked,
            open_connections=len(server.connections),
            exports=exports,
            metrics=list(_health_metrics(engine.metrics())),
        )


CACHED_MS = 30 * SECOND_MS
_CACHED_MAX = 256

NO_LOG = (
    "The event log is not exported, so processing times are unknown. Start the server with --events-to and a folder."
)
ELSEWHERE = "The event log is exported to {location}; this page can read only folders of this machine."
NO_ARROW = "Reading the event log needs pyarrow, which this install does not have: pip install 'veilmq[arrow]'."
NO_RECOMMENDATIONS_FOLDER = (
    "There are no recommendations. Run veilmq pipeline tune, and start the server with --recommendations "
    "STATE/recommendations."
)
NO_RECOMMENDATION = "There is no recommendation for this queue in {folder}: veilmq pipeline tune has not seen it yet."


class ProcessingHistory:
    """Processing-time histories and recommendations of a server's queues."""

    def __init__(self, settings: ServerSettings, clock: Clock) -> None:
        self._events_to = settings.events_to
        self._recommendations = settings.recommendations
        self._clock = clock
        self._reading = asyncio.Lock()
        self._cache: dict[tuple[str, str], tuple[int, Any]] = {}

    async def processing_times(self, queue: str) -> ProcessingTimes | str:
        """Return the processing times of ``queue`` (a full name), or why they are unknown."""
        if self._events_to is None:
            return NO_LOG
        location = self._events_to.removeprefix("file://")
        if "://" in location:
            return ELSEWHERE.format(location=location.partition("://")[0] + "://…")
        return await self._read(
            "processing_times", queue, lambda parquet_files: parquet_files.read_processing_times(Path(location), queue)
        )

    async def recommendation(self, queue: str) -> Recommendation | str:
        """Return the recommendation for ``queue``, or a sentence that says why there is none."""
        folder = self._recommendations
        if folder is None:
            return NO_RECOMMENDATIONS_FOLDER
        recommendation = await self._read(
            "recommendation", queue, lambda parquet_files: _recommendation(parquet_files, folder, queue)
        )
        return NO_RECOMMENDATION.format(folder=folder) if recommendation is None else recommendation

    async def _read(self, kind: str, queue: str, read: Callable[[Any], T]) -> T | str:
        async with self._reading:
            now_ms = self._clock.now_ms()
            read_at_ms, cached = self._cache.get((kind, queue), (now_ms - CACHED_MS, None))
            if now_ms - read_at_ms < CACHED_MS:
                return cast(T, cached)
            try:
                parquet_files = import_module("veilmq.events.parquet")
            except ModuleNotFoundError:
                return NO_ARROW
            result = await asyncio.to_thread(read, parquet_files)
            if len(self._cache) >= _CACHED_MAX:
                self._cache.clear()
            self._cache[kind, queue] = now_ms, result
            return result


def _recommendation(parquet_files: Any, folder: Path, queue: str) -> Recommendation | None:
    """Return the recommendation of ``veilmq pipeline tune`` for the whole ``queue``, if any."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    columns = [*Recommendation.__struct_fields__, "key"]
    for path, _ in parquet_files.newest_first(folder.glob("[!_.]*.parquet")):
        try:
            with path.open("rb") as file:
                table = parquet.read_table(file, columns=columns, filters=[("queue", "==", queue)])
        except (arrow.ArrowException, OSError):
            continue  # being replaced by a run
        for row in table.to_pylist():
            if row.pop("key") is None:
                return msgspec.convert(row, Recommendation)
    return None
