"""The settings of a server: one schema for flags, environment, file, help and documentation.

A field of ``ServerSettings`` is the only place where a setting is named, described and limited. ``SETTINGS`` is the
same as rows; reading the sources (``setting_sources``), ``veilmq serve --help`` and the table of ``docs/settings.md``
are made from it. An instance that exists is valid: whoever gets one need not check it again.
"""

import ipaddress
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from veilmq.core import limits
from veilmq.core.limits import Range
from veilmq.core.routing import ATTRIBUTE_DEFAULT
from veilmq.server.setting_kinds import (
    Choice,
    File,
    Folder,
    Hosts,
    Kind,
    NewFile,
    Peers,
    Place,
    SettingValue,
    Stores,
    Switch,
    Text,
    Url,
    WholeNumber,
)
from veilmq.store.urls import without_passwords
from veilmq.wire.exchange import REGION_PATTERN

ENVIRONMENT_PREFIX = "VEILMQ_"

_HOST = Text(pattern=r"[A-Za-z0-9.:_-]+(%[A-Za-z0-9]+)?", allowed="an IP address or a host name", placeholder="HOST")
_PORT = WholeNumber(Range(minimum=0, maximum=65_535, default=0), placeholder="PORT")
_REGION = Text(
    pattern=REGION_PATTERN,
    allowed="1 to 32 lower-case letters, digits and hyphens",
    placeholder="NAME",
)
_ACCOUNT = Text(pattern=r"[0-9]{12}", allowed="12 digits, as text", placeholder="DIGITS")
_DATA = Path("veilmq-data")
ONE_STORE = "one of store, data and memory"
_EVENT_LOG = Choice(values=("auto", "off", "closed"), placeholder="WHAT")
_ATTRIBUTE = Text(
    pattern=r"[A-Za-z0-9_.-]{1,256}",
    allowed="1 to 256 letters, digits, hyphens, underscores and dots",
    placeholder="NAME",
)
_DURABILITY = Choice(values=("strict", "standard"), placeholder="MODE")
_STALE_RECEIPTS = Choice(values=("fenced", "act"), placeholder="HOW")
_SMQ_HANDLES = Choice(values=("strict", "lenient"), placeholder="HOW")
_REGIONS = Choice(values=("one", "by-request"), placeholder="WHICH")
_LOG_LEVEL = Choice(values=("debug", "info", "warning", "error"), placeholder="LEVEL")


class SettingError(ValueError):
    """A setting is unknown, out of range, or at odds with another; ``str()`` names it, its source and the remedy."""

    def __init__(self, name: str, *, problem: str, origin: str = "", value: object = None) -> None:
        """``origin`` says where the value came from, empty when a program gave it; ``problem`` what to do."""
        shown = f"{name} = {without_passwords(str(value))!r}" if value is not None else name
        super().__init__(f"{shown} ({origin}): {problem}" if origin else f"{shown}: {problem}")
        self.name = name
        self.problem = problem
        self.value = value


def _setting(default: SettingValue, kind: Kind, description: str) -> Any:
    """Return a dataclass field that carries its own documentation and limits."""
    return field(default=default, metadata={"kind": kind, "description": description})


def _number(default: int, description: str, *, minimum: int, maximum: int) -> Any:
    return _range(Range(minimum=minimum, maximum=maximum, default=default), description)


def _range(allowed: Range, description: str) -> Any:
    return _setting(allowed.default, WholeNumber(allowed), description)


def _file(description: str) -> Any:
    return _setting(None, File(), description)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How one server runs; raises ``SettingError`` when a value is out of range or two are at odds."""

    host: str = _setting("127.0.0.1", _HOST, "Address that queue clients connect to.")
    port: int = _setting(9324, _PORT, "Port that queue clients connect to; 0 takes any free one.")
    admin_host: str = _setting("127.0.0.1", _HOST, "Address of the console, health and metrics.")
    admin_port: int = _setting(9325, _PORT, "Port of the console, health and metrics; 0 takes any free one.")
    data: Path | None = _setting(  # noqa: RUF009 (it answers a dataclass field)
        _DATA, Folder(), "Folder that keeps the queues; made when missing."
    )
    store: str | None = _setting(None, Stores(), "PostgreSQL database that keeps the queues, instead of data.")
    store_connections: int = _number(
        8,
        "Connections that this server keeps to its database, beside a few for work of its own.",
        minimum=1,
        maximum=1_000,
    )
    durability: str = _setting(
        "strict",
        _DURABILITY,
        "What a crash of the database may undo: strict, nothing; standard, the last receives, changes and deletes of "
        "standard queues.",
    )
    no_migrate: bool = _setting(
        False, Switch(), "Do not upgrade the schema of the database at the start: veilmq migrate does."
    )
    insecure: bool = _setting(
        False, Switch(), "Listen on addresses that other machines reach without knowing who they are."
    )
    credentials: Path | None = _file(  # noqa: RUF009 (as above)
        "File of the accounts and keys that may ask; their signatures are verified."
    )
    tls_certificate: Path | None = _file(  # noqa: RUF009 (as above)
        "Certificate chain of the server in PEM; both ports then speak TLS."
    )
    tls_key: Path | None = _file(  # noqa: RUF009 (as above)
        "Private key of the certificate in PEM, without a passphrase."
    )
    region: str = _setting("us-east-1", _REGION, "Region in the ARNs of queues.")
    regions: str = _setting(
        "one",
        _REGIONS,
        "Regions that queues are in: one, the server's own; by-request, those that requests name.",
    )
    account: str = _setting("000000000000", _ACCOUNT, "Account that owns the queues, in their URLs and ARNs.")
    audit_log: Path | None = _setting(  # noqa: RUF009 (as above)
        None, NewFile(), "File that tells who changed what by the console and its API; without it audit.jsonl in data."
    )
    recommendations: Path | None = _setting(  # noqa: RUF009 (as above)
        None, Folder(), "Folder of recommended timeouts that veilmq pipeline tune writes, for the console."
    )
    console_proxy: str | None = _setting(
        None, Peers(), "Proxies that speak TLS before the console; what they say of their clients is believed."
    )
    drain_s_max: int = _number(
        20, "Seconds that running requests get to finish after SIGTERM.", minimum=0, maximum=3_600
    )
    log_level: str = _setting("info", _LOG_LEVEL, "The least serious messages that are logged.")
    free_space_reserve_bytes: int = _number(
        limits.FREE_SPACE_RESERVE_BYTES,
        "Free disk space in bytes below which sends are refused, so that a full disk can be drained.",
        minimum=0,
        maximum=2**50,
    )
    in_flight_max: int = _range(limits.IN_FLIGHT, "Messages of a standard queue that may be in flight at once.")
    fifo_in_flight_max: int = _range(limits.FIFO_IN_FLIGHT, "Messages of a FIFO queue that may be in flight at once.")
    purge_pause_s: int = _number(
        limits.PURGE_PAUSE_S, "Seconds between two purges of a queue; 0 for no pause.", minimum=0, maximum=86_400
    )
    queue_name_pause_s: int = _number(
        limits.QUEUE_NAME_PAUSE_S,
        "Seconds before the name of a deleted queue can be used again; 0 for no pause.",
        minimum=0,
        maximum=86_400,
    )
    event_log: str = _setting(
        "auto",
        _EVENT_LOG,
        "What the event log has of queues that do not say it; auto: closed with events_to, else off.",
    )
    events_to: str | None = _setting(None, Place(), "Where the event log is exported to, as Parquet files.")
    events_period_s: int = _number(
        60, "Seconds between two exports of the event log, at most.", minimum=1, maximum=86_400
    )
    events_per_file: int = _number(
        250_000, "Events that are exported at once, without waiting for the period.", minimum=1, maximum=5_000_000
    )
    events_waiting_max: int = _number(
        limits.EVENTS_WAITING_MAX,
        "Events that may wait to be exported; while so many do, new ones are dropped.",
        minimum=1,
        maximum=1_000_000_000,
    )
    routing_attribute: str = _setting(
        ATTRIBUTE_DEFAULT, _ATTRIBUTE, "Message attribute whose text says what kind of work a message is."
    )

    stale_receipts: str = _setting(
        "fenced",
        _STALE_RECEIPTS,
        "What a receipt handle does over SQS once a standard queue's message was received again: fenced, nothing; act, "
        "it deletes and changes, as at Amazon.",
    )
    http_bytes_max: int = _range(
        limits.HTTP_BYTES, "Bytes of large request bodies and of answers that clients do not read, held in memory."
    )

    smq_handles: str = _setting(
        "strict",
        _SMQ_HANDLES,
        "Which receipt handles act over SMQ: strict, the latest; lenient, also earlier ones of the same receive.",
    )
    smq_message_bytes_max: int = _number(
        limits.SMQ_MESSAGE_BYTES.maximum,
        "Bytes that a message of a queue can be allowed to have over SMQ, and a batch of them together.",
        minimum=limits.SMQ_MESSAGE_BYTES.maximum,
        maximum=limits.MESSAGE_BYTES.maximum,
    )

    push_allow: str | None = _setting(
        None, Hosts(), "Hosts that messages of topics may be pushed to; nothing is pushed anywhere else."
    )
    push_parallel_max: int = _number(64, "Messages that are pushed at once, at most.", minimum=1, maximum=1_000)
    push_key: Path | None = _file(  # noqa: RUF009 (as above)
        "RSA key in PEM that signs pushes, instead of the one in the data folder."
    )
    push_certificate: Path | None = _file(  # noqa: RUF009 (as above)
        "Certificate in PEM of push_key, for receivers of pushes."
    )
    push_certificate_url: str | None = _setting(
        None, Url(), "URL that receivers of pushes get the certificate from; this server's own without it."
    )

    def __post_init__(self) -> None:
        """Check each value by itself, then those that depend on each other."""
        for row in _ROWS:
            _check_value(row, getattr(self, row.name))
        if self.store is not None and self.data not in (None, _DATA):
            raise SettingError("data", value=self.data, problem=f"store is given too; give {ONE_STORE}")
        if self.store is None and self.durability != "strict":
            raise SettingError(
                "durability",
                value=self.durability,
                problem="only a store has it; a data folder always waits for its disk",
            )
        _check_reach(self, "host", safe=self.credentials is not None, remedy="credentials (--credentials) or insecure")
        _check_reach(
            self,
            "admin_host",
            safe=self.credentials is not None and self.tls_certificate is not None,
            remedy="both credentials (--credentials) and a certificate (--tls-certificate, --tls-key), or insecure",
        )
        if self.console_proxy is not None and self.credentials is None:
            raise SettingError(
                "console_proxy",
                value=self.console_proxy,
                problem="others reach the console through it, so it needs credentials (--credentials)",
            )
        for pair in (("tls_certificate", "tls_key"), ("push_certificate", "push_key")):
            for name, other in (pair, pair[::-1]):
                if getattr(self, name) is None and getattr(self, other) is not None:
                    raise SettingError(name, problem=f"must be given with {other}")
        if self.port == self.admin_port != 0 and self.host == self.admin_host:
            raise SettingError("admin_port", value=self.admin_port, problem="must differ from port")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the schema."""

    name: str
    kind: Kind
    default: SettingValue
    description: str

    @property
    def flag(self) -> str:
        """How the command line names it."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """How the environment names it."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        """The default as a person would write it."""
        if self.default is None:
            return "none"
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)


def _row(declared: Field[Any]) -> Setting:
    return Setting(name=declared.name, default=cast(SettingValue, declared.default), **declared.metadata)


_ROWS = tuple(_row(declared) for declared in fields(ServerSettings))

MEMORY = Setting(
    name="memory",
    kind=Switch(),
    default=False,
    description="Keep everything in memory and nothing anywhere else, instead of data: for tests.",
)
"""The one setting that is no field of its own: it stands for ``data=None``, which no source can write."""


def _with_memory(rows: tuple[Setting, ...]) -> tuple[Setting, ...]:
    after_data = [row.name for row in rows].index("data") + 1
    return (*rows[:after_data], MEMORY, *rows[after_data:])


SETTINGS = _with_memory(_ROWS)
"""Every setting that a flag, a variable or a file can give, in the order of help and documentation."""


def _check_value(row: Setting, value: SettingValue) -> None:
    try:
        unchanged = row.kind.read(value) == value
    except ValueError:
        unchanged = False
    if not unchanged:
        raise SettingError(row.name, value=value, problem=f"must be {row.kind.allowed}")


def _check_reach(settings: ServerSettings, name: str, *, safe: bool, remedy: str) -> None:
    """Refuse an address that other machines may reach, unless whoever reaches it is asked who it is."""
    host = getattr(settings, name)
    if not (safe or settings.insecure or _is_loopback(host)):
        problem = "other machines may reach this, and nobody is asked who it is; name a loopback address or add"
        raise SettingError(name, value=host, problem=f"{problem} {remedy} (--insecure)")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # any other name may mean any address
