"""The settings of a server: one table for flags, environment, file, help and documentation.

A field of ``ServerSettings`` is the only place where a setting is named, described and limited. ``SETTINGS`` has the
same as rows; the sources, ``veilmq serve --help`` and the table of ``docs/settings.md`` are made from it. An instance
that exists is valid.

Sources are flags, then the environment, then a file, then the defaults. Every source is read completely and checked,
also the parts that a stronger source overrides: a misspelt or out-of-range setting is an error wherever it stands, and
the error names its source.

For each Service of a namespace, Kubernetes gives every container seven variables that begin with the Service's name
("Environment variables" in its documentation of Services). A Service called ``veilmq`` makes that
``VEILMQ_SERVICE_HOST`` and so on. They are no settings and are skipped, but for those that have the name of a setting:
``VEILMQ_PORT`` cannot be both.
"""

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from veilmq.core import limits
from veilmq.core.limits import Range
from veilmq.core.settings import ROUTING_ATTRIBUTE_DEFAULT
from veilmq.server.setting_kinds import (
    FILE,
    FOLDER,
    HOSTS,
    PEERS,
    PLACE,
    WEB_URL,
    Kind,
    SettingValue,
    Stores,
    Switch,
    WholeNumber,
    matching,
    one_of,
)
from veilmq.store.urls import without_passwords
from veilmq.wire.exchange import REGION_PATTERN

ENVIRONMENT_PREFIX = "VEILMQ_"

_HOST = matching(r"[A-Za-z0-9.:_-]+(%[A-Za-z0-9]+)?", "an IP address or a host name", "HOST")
_PORT = WholeNumber(Range(minimum=0, maximum=65_535, default=0), placeholder="PORT")
_REGION = matching(REGION_PATTERN, "1 to 32 lower-case letters, digits and hyphens", "NAME")
_ACCOUNT = matching(r"[0-9]{12}", "12 digits, as text", "DIGITS")
_DATA = Path("veilmq-data")
ONE_STORE = "one of store, data and memory"
_EVENT_LOG = one_of("auto", "off", "closed", placeholder="WHAT")
_ATTRIBUTE = matching(r"[A-Za-z0-9_.-]{1,256}", "1 to 256 letters, digits, hyphens, underscores and dots", "NAME")
_DURABILITY = one_of("strict", "standard", placeholder="MODE")
_STALE_RECEIPTS = one_of("fenced", "act", placeholder="HOW")
_SMQ_HANDLES = one_of("strict", "lenient", placeholder="HOW")
_REGIONS = one_of("one", "by-request", placeholder="WHICH")
_LOG_LEVEL = one_of("debug", "info", "warning", "error", placeholder="LEVEL")


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
    return _setting(None, FILE, description)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How one server runs; raises ``SettingError`` when a value is out of range or two are at odds."""

    host: str = _setting("127.0.0.1", _HOST, "Address that queue clients connect to.")
    port: int = _setting(9324, _PORT, "Port that queue clients connect to; 0 takes any free one.")
    admin_host: str = _setting("127.0.0.1", _HOST, "Address of the console, health and metrics.")
    admin_port: int = _setting(9325, _PORT, "Port of the console, health and metrics; 0 takes any free one.")
    data: Path | None = _setting(  # noqa: RUF009 (it answers a dataclass field)
        _DATA, FOLDER, "Folder that keeps the queues; made when missing."
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
        "one", _REGIONS, "Regions that queues are in: one, the server's own; by-request, those that requests name."
    )
    account: str = _setting("000000000000", _ACCOUNT, "Account that owns the queues, in their URLs and ARNs.")
    audit_log: Path | None = _setting(  # noqa: RUF009 (as above)
        None, FILE, "File that tells who changed what by the console and its API; without it audit.jsonl in data."
    )
    recommendations: Path | None = _setting(  # noqa: RUF009 (as above)
        None, FOLDER, "Folder of recommended timeouts that veilmq pipeline tune writes, for the console."
    )
    console_proxy: str | None = _setting(
        None, PEERS, "Proxies that speak TLS before the console; what they say of their clients is believed."
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
    events_to: str | None = _setting(None, PLACE, "Where the event log is exported to, as Parquet files.")
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
        ROUTING_ATTRIBUTE_DEFAULT, _ATTRIBUTE, "Message attribute whose text says what kind of work a message is."
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
        None, HOSTS, "Hosts that messages of topics may be pushed to; nothing is pushed anywhere else."
    )
    push_parallel_max: int = _number(64, "Messages that are pushed at once, at most.", minimum=1, maximum=1_000)
    push_key: Path | None = _file(  # noqa: RUF009 (as above)
        "RSA key in PEM that signs pushes, instead of the one in the data folder."
    )
    push_certificate: Path | None = _file(  # noqa: RUF009 (as above)
        "Certificate in PEM of push_key, for receivers of pushes."
    )
    push_certificate_url: str | None = _setting(
        None, WEB_URL, "URL that receivers of pushes get the certificate from; this server's own without it."
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


_AFTER_DATA = [row.name for row in _ROWS].index("data") + 1

SETTINGS = (*_ROWS[:_AFTER_DATA], MEMORY, *_ROWS[_AFTER_DATA:])
"""Every setting that a flag, a variable or a file can give, in the order of help and documentation."""


def _check_value(row: Setting, value: SettingValue) -> None:
    try:
        unchanged = row.kind.read(value) == value
    except ValueError:
        unchanged = False
    if not unchanged:
        raise SettingError(row.name, value=value, problem=f"must be {row.kind.allowed}")


def _check_reach(settings: ServerSettings, name: str, *, safe: bool, remedy: str) -> None:
    """Refuse an address that other machines may reach, unless callers have to sign."""
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


_SERVICE = re.compile(
    r"VEILMQ_(?:[A-Z0-9_]+_)?(?:"
    r"SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|"
    r"PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_PORT = re.compile(r"VEILMQ_(?:[A-Z0-9_]+_)?PORT")
_LINK = re.compile(r"(?:tcp|udp|sctp)://[^/\s]+:[0-9]+")

REMEDY = (
    "this is what Kubernetes sets for a Service of that name; "
    "put enableServiceLinks: false into the pod's spec, or rename the Service"
)


def is_link(value: str) -> bool:
    """Tell whether ``value`` is one that Kubernetes gives to ``<SERVICE>_PORT``, for example tcp://10.0.0.1:9324."""
    return _LINK.fullmatch(value) is not None


def is_of_service(name: str, value: str) -> bool:
    """Tell whether a variable with our prefix describes a Service."""
    return _SERVICE.fullmatch(name) is not None or (_SERVICE_PORT.fullmatch(name) is not None and is_link(value))


FILE_NAME = "veilmq.toml"
"""Read from the working directory when no file is named, if it is there."""

FILE_VARIABLE = "VEILMQ_CONFIG"
"""Names the settings file."""

VARIABLES_OF_OTHERS = frozenset({FILE_VARIABLE, "VEILMQ_ENDPOINT"})
"""Variables with our prefix that are no settings: the file's name, and that of the client commands."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value that was read, and the words that say where it stood."""

    value: SettingValue
    origin: str


def resolve(*, flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None = None) -> ServerSettings:
    """Return the settings that hold; raises ``SettingError``.

    ``flags`` maps names of settings to raw values (flags that were not used are absent); ``file`` is the file that a
    flag named, ``None`` for the one that the environment names, or ``veilmq.toml`` where that exists.
    """
    given = _from_file(file, environment) | _from_environment(environment)
    given |= _read({row.name: (flags[row.name], f"flag {row.flag}") for row in SETTINGS if row.name in flags})
    values: dict[str, Any] = {name: one.value for name, one in given.items()}
    try:
        return ServerSettings(**values)
    except SettingError as error:
        origin = given[error.name].origin if error.name in given else "default"
        raise SettingError(error.name, value=error.value, origin=origin, problem=error.problem) from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    ours = {name for name in environment if name.startswith(ENVIRONMENT_PREFIX)} - VARIABLES_OF_OTHERS
    known = {row.variable: row for row in SETTINGS}
    ours = {name for name in ours if name in known or not is_of_service(name, environment[name])}
    _refuse_unknown(ours, known=known, origin="environment")
    _refuse_links(ours, environment=environment, known=known)
    return _read({known[name].name: (environment[name], f"environment variable {name}") for name in ours})


def _refuse_links(names: Iterable[str], *, environment: Mapping[str, str], known: Mapping[str, Setting]) -> None:
    for name in sorted(names):
        if is_link(environment[name]):
            origin = f"environment variable {name}"
            raise SettingError(known[name].name, value=environment[name], origin=origin, problem=REMEDY)


def _from_file(named: Path | None, environment: Mapping[str, str]) -> dict[str, Given]:
    path = _find_file(named, environment)
    if path is None:
        return {}
    found = _parse(path)
    _refuse_unknown(found, known=[row.name for row in SETTINGS], origin=f"file {path}")
    return _read({name: (value, f"file {path}") for name, value in found.items()})


def _find_file(named: Path | None, environment: Mapping[str, str]) -> Path | None:
    if named is not None:
        return named
    if FILE_VARIABLE in environment:
        return Path(environment[FILE_VARIABLE])
    usual = Path(FILE_NAME)
    return usual if usual.exists() else None


def _parse(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError("config", value=path, problem=f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise SettingError("config", value=path, problem=f"is not a TOML file: {error}") from None


def _refuse_unknown(names: Iterable[str], *, known: Iterable[str], origin: str) -> None:
    known = list(known)
    for name in sorted(set(names) - set(known)):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}"
        raise SettingError(name, origin=origin, problem=f"unknown setting; {hint}")


def _read(raw: Mapping[str, tuple[object, str]]) -> dict[str, Given]:
    """Read one source; what it says of the place of messages takes the place of all that weaker sources say of it."""
    given = {row.name: _read_one(row, *raw[row.name]) for row in SETTINGS if row.name in raw}
    if MEMORY.name in given and not given[MEMORY.name].value:
        del given[MEMORY.name]
    places = [name for name in ("data", MEMORY.name, "store") if name in given]
    if len(places) > 1:
        name, other = places[:2]
        problem = f"{other} is given too; give {ONE_STORE}"
        raise SettingError(name, value=given[name].value, origin=given[name].origin, problem=problem)
    for name in places:
        origin = given[name].origin
        given = {"data": Given(None, origin), "store": Given(None, origin)} | given
    given.pop(MEMORY.name, None)
    return given


def _read_one(row: Setting, value: object, origin: str) -> Given:
    try:
        return Given(row.kind.read(value), origin)
    except ValueError:
        problem = f"must be {row.kind.allowed}"
        raise SettingError(row.name, value=value, origin=origin, problem=problem) from None
