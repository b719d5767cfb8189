"""The settings of a server: one table for flags, environment, file, help and documentation.

Each setting is named, described and limited by a field of ``ServerSettings``, and nowhere else. ``SETTINGS`` has the
same as rows, for the sources, ``veilmq serve --help`` and the table of ``docs/settings.md``. Instances are always
valid.

Sources are flags, then the environment, then a file, then the defaults. Every source is checked completely, including
values that a stronger source overrides: a misspelt or out-of-range setting is always an error, which names its source.

For each Service of a namespace, Kubernetes gives every container seven variables that begin with the Service's name
("Environment variables" in its documentation of Services); for a Service called ``veilmq``, ``VEILMQ_SERVICE_HOST`` and
so on. These are skipped, except those that have the name of a setting: ``VEILMQ_PORT`` cannot be both.

Two settings are lists of hosts. ``AllowList`` lists hosts, addresses and networks to push to, each with an optional
port. Addresses outside the public internet (loopback, private, link-local with the metadata of clouds, and the other
special blocks of IANA's registries) are allowed only by a network within such a block: neither by a name that resolves
there, nor by a network as wide as all addresses.
"""

# ruff: noqa: RUF009 (_setting returns a dataclass field)

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, cast

from veilmq.core import limits
from veilmq.core.limits import Range
from veilmq.core.settings import ROUTING_ATTRIBUTE_DEFAULT
from veilmq.store.urls import split_urls, without_passwords
from veilmq.wire.exchange import REGION_PATTERN

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Addresses:
    """A list such as ``10.1.2.3, 10.2.0.0/16, fd00::/8``: a container of addresses, empty for ``None``."""

    def __init__(self, text: str | None) -> None:
        """Raises ``ValueError`` if ``text`` is invalid, or has a network of all addresses."""
        entries = [] if text is None else text.split(",")
        self._networks: list[Network] = [ip_network(each.strip()) for each in entries]
        if any(network.prefixlen == 0 for network in self._networks):
            raise ValueError(text)

    def __contains__(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


_SPECIAL_4 = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
    "192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
)
_SPECIAL_6 = (  # including those that map to IPv4 addresses
    "::/96 ::ffff:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 2002::/16 3fff::/20 5f00::/16 "
    "fc00::/7 fe80::/10 fec0::/10 ff00::/8"
)
_SPECIAL: dict[int, list[Network]] = {
    4: [ip_network(block) for block in _SPECIAL_4.split()],
    6: [ip_network(block) for block in _SPECIAL_6.split()],
}
_WITH_PORT = re.compile(r"(?:\[(?P<address>[^\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})")
_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")


class AllowList:
    """The hosts that a server may push to; an empty list allows none."""

    def __init__(self, text: str) -> None:
        """Read entries separated by commas; raises ``ValueError``."""
        self._names: set[tuple[str, int | None]] = set()  # in lower case; None allows all ports
        self._networks: list[tuple[Network, bool, int | None]] = []  # the bool: within a special block
        for entry in filter(None, map(str.strip, text.split(","))):
            host, port = entry, cast(int | None, None)
            with_port = _WITH_PORT.fullmatch(entry)
            if with_port is not None:
                host, port = with_port["address"] or with_port["host"], int(with_port["port"])
                if not 1 <= port <= 65_535:
                    raise ValueError(entry)
            try:
                network = ip_network(host)
            except ValueError:
                if not _NAME.fullmatch(host):
                    raise
                self._names.add((host.lower(), port))
                continue
            first, last = network.network_address, network.broadcast_address
            special = any(first in block and last in block for block in _SPECIAL[network.version])
            self._networks.append((network, special, port))

    def __bool__(self) -> bool:
        return bool(self._names or self._networks)

    @property
    def has_networks(self) -> bool:
        """Whether addresses may be allowed whose name is not listed."""
        return bool(self._networks)

    def allows_name(self, host: str, port: int) -> bool:
        """Return whether ``host``, in lower case, is listed for ``port``; only its public addresses are allowed."""
        return not self._names.isdisjoint({(host, None), (host, port)})

    def allows_address(self, address: Address, port: int, *, named: bool) -> bool:
        """Return whether connections to ``address`` at ``port`` are allowed; ``named``: its host is listed."""
        plain = unmapped(address)
        special = is_special(plain)
        if named and not special:
            return True
        return any(
            plain in network and allowed in (None, port) and (within_special or not special)
            for network, within_special, allowed in self._networks
        )


def unmapped(address: Address) -> Address:
    """Return the IPv4 address of an IPv4-mapped one, otherwise ``address``."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_special(address: Address) -> bool:
    """Return whether ``address`` is outside the public internet."""
    return any(address in block for block in _SPECIAL[address.version])


SettingValue = str | int | bool | Path | None


class Kind(NamedTuple):
    """One kind of value; ``placeholder`` stands for a value in help, ``allowed`` follows the words "must be".

    ``read`` takes text (from a flag or the environment) or a value from a settings file, and returns the typed value or
    raises ``ValueError``. It returns a typed value unchanged, so the same rule checks settings built in a program.
    """

    placeholder: str
    allowed: str
    read: Callable[[Any], SettingValue]


def whole_number(allowed: Range, placeholder: str = "N") -> Kind:
    """Return the kind of a number in a range, given as a number or its digits."""

    def read(raw: object) -> int:
        if isinstance(raw, str):
            return allowed.read(raw)
        if isinstance(raw, bool) or not isinstance(raw, int) or not allowed.holds(raw):
            raise ValueError(raw)
        return raw

    return Kind(placeholder, str(allowed), read)


def _text(placeholder: str, allowed: str, check: Callable[[str], object]) -> Kind:
    """Return the kind of text that ``check`` accepts. Numbers are refused: a file's number has lost leading zeros."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not check(raw):
            raise ValueError(raw)
        return raw

    return Kind(placeholder, allowed, read)


def _one_of(placeholder: str, *values: str) -> Kind:
    return _text(placeholder, f"one of {', '.join(values)}", values.__contains__)


def _read_switch(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if raw not in ("true", "false"):
        raise ValueError(raw)
    return raw == "true"


def _read_path(raw: object) -> Path:
    if not isinstance(raw, str | Path) or not str(raw).encode() or "\0" in str(raw):  # encode() raises if it is no text
        raise ValueError(raw)
    return Path(raw)


def _read_stores(raw: object) -> str:
    if isinstance(raw, list) and all(isinstance(each, str) for each in raw):
        raw = ",".join(raw)
    if not isinstance(raw, str):
        raise ValueError(raw)
    return ",".join(split_urls(raw))


SWITCH = Kind("", "true or false", _read_switch)
"""As a flag it has no value, and means true."""

STORES = Kind(
    "URL",
    "a URL that begins with postgresql://, or several separated by commas, each port from 1 to 65535",
    _read_stores,
)
_FOLDER = Kind("DIR", "the path of a folder", _read_path)
_FILE = Kind("FILE", "the path of a file", _read_path)
_HOST = _text("HOST", "an IP address or a host name", re.compile(r"[A-Za-z0-9.:_-]+(%[A-Za-z0-9._-]+)?").fullmatch)
_PORT = whole_number(Range(minimum=0, maximum=65_535, default=0), "PORT")
_REGION = _text("NAME", "1 to 32 lower-case letters, digits and hyphens", re.compile(REGION_PATTERN).fullmatch)
_ACCOUNT = _text("DIGITS", "12 digits, as text", re.compile(r"[0-9]{12}").fullmatch)
_PEERS = _text("ADDRESSES", "IP addresses and networks, separated by commas, but not all addresses", Addresses)
_EXPORT_TARGET = _text("URL", "the path of a folder, or a URL", lambda raw: raw and raw.isprintable())
_ATTRIBUTE = _text(
    "NAME", "1 to 256 letters, digits, hyphens, underscores and dots", re.compile(r"[A-Za-z0-9_.-]{1,256}").fullmatch
)
_HOSTS = _text(
    "HOSTS", "host names, addresses and networks, each with an optional port, separated by commas", AllowList
)
_WEB_URL = _text("URL", "a URL that begins with http:// or https://", re.compile(r"https?://[!-~]+").fullmatch)
_DATA = Path("veilmq-data")
_PAIRS = (("tls_certificate", "tls_key"), ("push_certificate", "push_key"))

ENVIRONMENT_PREFIX = "VEILMQ_"
ONE_STORE = "one of store, data and memory"


class SettingError(ValueError):
    """A setting is unknown, out of range, or in conflict with another; ``str()`` says which, where, and the remedy."""

    def __init__(self, name: str, *, problem: str, origin: str = "", value: object = None) -> None:
        """``origin`` is the source of the value, empty in a program; ``problem`` says what to do."""
        shown = f"{name} = {without_passwords(str(value))!r}" if value is not None else name
        super().__init__(f"{shown} ({origin}): {problem}" if origin else f"{shown}: {problem}")
        self.name = name
        self.problem = problem
        self.value = value


def _setting(default: SettingValue, kind: Kind, description: str) -> Any:
    return field(default=default, metadata={"kind": kind, "description": description})


def _number(default: int, minimum: int, maximum: int, description: str) -> Any:
    return _range(Range(minimum=minimum, maximum=maximum, default=default), description)


def _range(allowed: Range, description: str) -> Any:
    return _setting(allowed.default, whole_number(allowed), description)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of one server; raises ``SettingError`` if a value is out of range or two conflict."""

    host: str = _setting("127.0.0.1", _HOST, "Address that queue clients connect to.")
    port: int = _setting(9324, _PORT, "Port that queue clients connect to; 0 picks a free one.")
    admin_host: str = _setting("127.0.0.1", _HOST, "Address of the console, health and metrics.")
    admin_port: int = _setting(9325, _PORT, "Port of the console, health and metrics; 0 picks a free one.")
    metrics_host: str = _setting("127.0.0.1", _HOST, "Address of metrics_port.")
    metrics_port: int | None = _setting(
        None,
        _PORT,
        "Port that serves only health and metrics, always over plain HTTP; 0 picks a free one.",
    )
    data: Path | None = _setting(_DATA, _FOLDER, "Folder that keeps the queues; serve creates it.")
    store: str | None = _setting(None, STORES, "PostgreSQL database that keeps the queues, instead of data.")
    store_connections: int = _number(
        8, 2, 1_000, "Connections that this server keeps to its database, besides a few for background work."
    )
    durability: str = _setting(
        "strict",
        _one_of("MODE", "strict", "standard"),
        "What a crash of the database may undo: strict, nothing; standard, the latest receives, changes and deletes "
        "of standard queues.",
    )
    no_migrate: bool = _setting(
        False, SWITCH, "Do not upgrade the schema of the database at the start; run veilmq migrate instead."
    )
    insecure: bool = _setting(False, SWITCH, "Listen on addresses open to other machines, without authentication.")
    credentials: Path | None = _setting(
        None, _FILE, "File of the accounts and keys that may send requests; the server then verifies signatures."
    )
    tls_certificate: Path | None = _setting(
        None, _FILE, "Certificate chain of the server in PEM; both ports then speak TLS."
    )
    tls_key: Path | None = _setting(None, _FILE, "Private key of the certificate in PEM, without a passphrase.")
    region: str = _setting("us-east-1", _REGION, "Region in the ARNs of queues.")
    regions: str = _setting(
        "one",
        _one_of("WHICH", "one", "by-request"),
        "Regions of queues: one, the server's own; by-request, the one that the request names.",
    )
    account: str = _setting("000000000000", _ACCOUNT, "Account that owns the queues, in their URLs and ARNs.")
    queues_file: Path | None = _setting(
        None, _FILE, "File of queues and topics to create or update at the start; by default the settings file."
    )
    audit_log: Path | None = _setting(
        None, _FILE, "File that records changes made by the console and its API; by default audit.jsonl in data."
    )
    recommendations: Path | None = _setting(
        None, _FOLDER, "Folder to which veilmq pipeline tune writes recommended timeouts, for the console."
    )
    console_proxy: str | None = _setting(
        None, _PEERS, "Proxies that handle TLS for the console; the server trusts what they state about clients."
    )
    drain_s_max: int = _number(20, 0, 3_600, "Seconds that running requests get to finish after SIGTERM.")
    log_level: str = _setting(
        "info", _one_of("LEVEL", "debug", "info", "warning", "error"), "Lowest level of messages that are logged."
    )
    free_space_reserve_bytes: int = _number(
        limits.FREE_SPACE_RESERVE_BYTES,
        0,
        2**50,
        "Free disk space in bytes below which sends are refused, so that a full disk can be drained.",
    )
    in_flight_max: int = _range(limits.IN_FLIGHT, "Maximum number of messages in flight, per standard queue.")
    fifo_in_flight_max: int = _range(limits.FIFO_IN_FLIGHT, "Maximum number of messages in flight, per FIFO queue.")
    purge_pause_s: int = _number(
        limits.PURGE_PAUSE_S, 0, 86_400, "Seconds between two purges of a queue; 0 for no pause."
    )
    queue_name_pause_s: int = _number(
        limits.QUEUE_NAME_PAUSE_S,
        0,
        86_400,
        "Seconds before the name of a deleted queue can be used again; 0 for no pause.",
    )
    event_log: str = _setting(
        "auto",
        _one_of("WHAT", "auto", "off", "closed"),
        "Event log of queues without a setting of their own; auto: closed if events_to is set, else off.",
    )
    events_to: str | None = _setting(None, _EXPORT_TARGET, "Where the event log is exported to, as Parquet files.")
    events_period_s: int = _number(60, 1, 86_400, "Maximum number of seconds between two exports of the event log.")
    events_per_file: int = _number(
        250_000, 1, 5_000_000, "Number of waiting events that starts an export before the period ends."
    )
    events_waiting_max: int = _number(
        limits.EVENTS_WAITING_MAX,
        1,
        1_000_000_000,
        "Maximum number of events that wait for their export; beyond it new ones are dropped.",
    )
    routing_attribute: str = _setting(
        ROUTING_ATTRIBUTE_DEFAULT, _ATTRIBUTE, "Message attribute whose text names the kind of work."
    )
    stale_receipts: str = _setting(
        "fenced",
        _one_of("HOW", "fenced", "act"),
        "What a receipt handle of a standard queue does over SQS after its message was received again: fenced, "
        "nothing; act, it deletes and changes, as at Amazon.",
    )
    http_bytes_max: int = _range(
        limits.HTTP_BYTES, "Bytes of memory for large request bodies and for replies that clients have not read."
    )
    smq_handles: str = _setting(
        "strict",
        _one_of("HOW", "strict", "lenient"),
        "Which receipt handles are valid over SMQ: strict, the latest; lenient, also earlier ones of the same receive.",
    )
    smq_message_bytes_max: int = _number(
        limits.SMQ_MESSAGE_BYTES.maximum,
        limits.SMQ_MESSAGE_BYTES.maximum,
        limits.MESSAGE_BYTES.maximum,
        "Highest maximum message size of a queue over SMQ, in bytes; also the maximum size of a batch.",
    )
    push_allow: str | None = _setting(
        None, _HOSTS, "Hosts to which messages of topics may be pushed; nothing is pushed to other hosts."
    )
    push_parallel_max: int = _number(64, 1, 1_000, "Maximum number of concurrent pushes.")
    push_key: Path | None = _setting(
        None, _FILE, "RSA key in PEM that signs pushes, instead of the one in the data folder."
    )
    push_certificate: Path | None = _setting(None, _FILE, "Certificate in PEM of push_key, for receivers of pushes.")
    push_certificate_url: str | None = _setting(
        None, _WEB_URL, "URL from which receivers of pushes get the certificate; by default one of this server."
    )

    def __post_init__(self) -> None:
        for row in _ROWS:
            value = getattr(self, row.name)
            if not row.holds(value):
                raise SettingError(row.name, value=value, problem=f"must be {row.kind.allowed}")
        if self.store is not None and self.data not in (None, _DATA):
            raise SettingError("data", value=self.data, problem=f"store is given too; give {ONE_STORE}")
        if self.store is None and self.durability != "strict":
            problem = "needs store; a data folder always waits for its disk"
            raise SettingError("durability", value=self.durability, problem=problem)
        signed, encrypted = self.credentials is not None, self.tls_certificate is not None
        both = "both credentials (--credentials) and a certificate (--tls-certificate, --tls-key), or insecure"
        for name, safe, remedy in (
            ("host", signed, "credentials (--credentials) or insecure"),
            ("admin_host", signed and encrypted, both),
        ):
            host = getattr(self, name)
            if not (safe or self.insecure or is_loopback(host)):
                problem = "other machines can reach it, and requests need no signature; use a loopback address or add"
                raise SettingError(name, value=host, problem=f"{problem} {remedy} (--insecure)")
        if self.console_proxy is not None and not signed:
            problem = "needs credentials (--credentials), because other machines reach the console through a proxy"
            raise SettingError("console_proxy", value=self.console_proxy, problem=problem)
        for name, other in (*_PAIRS, *(pair[::-1] for pair in _PAIRS), ("push_allow", "push_key")):
            if getattr(self, name) is None and getattr(self, other) is not None:
                raise SettingError(name, problem=f"must be given with {other}")
        for first, second in combinations(("", "admin_", "metrics_"), 2):
            name, other = f"{first}port", f"{second}port"
            port, same_host = getattr(self, other), getattr(self, f"{first}host") == getattr(self, f"{second}host")
            if port and same_host and getattr(self, name) == port:
                raise SettingError(other, value=port, problem=f"must differ from {name}")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False  # other names may resolve to any address


def as_written(value: SettingValue) -> str:
    """Return ``value`` as in a settings file."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


class Setting(NamedTuple):
    """A row of the table."""

    name: str
    kind: Kind
    default: SettingValue
    description: str
    is_optional: bool = False
    """Whether a program may pass ``None``, which no source can express."""

    def holds(self, value: SettingValue) -> bool:
        """Return whether ``value`` is valid."""
        try:
            return (value is None and self.is_optional) or self.kind.read(value) == value
        except ValueError:
            return False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        return as_written(self.default)


_ROWS = tuple(
    Setting(
        name=row.name, default=cast(Any, row.default), is_optional=isinstance(None, cast(Any, row.type)), **row.metadata
    )
    for row in fields(ServerSettings)
)

MEMORY = Setting("memory", SWITCH, False, "Keep everything in memory and nothing on disk, instead of data: for tests.")
"""The one setting without a field: it stands for ``data=None``, which no source can express."""

_PLACES = ("data", MEMORY.name, "store")

_AFTER_DATA = [row.name for row in _ROWS].index("data") + 1

SETTINGS = (*_ROWS[:_AFTER_DATA], MEMORY, *_ROWS[_AFTER_DATA:])
"""All settings that a flag, a variable or a file can give, in the order of help and documentation."""

_SERVICE = re.compile(
    r"VEILMQ_(?:[A-Z0-9_]+_)?(?:"
    r"SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|"
    r"PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_PORT = re.compile(r"VEILMQ_(?:[A-Z0-9_]+_)?PORT")
_LINK = re.compile(r"(?:tcp|udp|sctp)://[^/\s]+:[0-9]+")
"""The value that Kubernetes gives ``<SERVICE>_PORT``, for example tcp://10.0.0.1:9324."""

REMEDY = (
    "this is what Kubernetes sets for a Service of that name; "
    "put enableServiceLinks: false into the pod's spec, or rename the Service"
)

FILE_NAME = "veilmq.toml"
"""Default settings file, in the working directory; may be missing."""

DECLARATIONS = ("queues", "topics")
"""Tables of a settings file that are not settings but the content of ``queues_file``, which is then that file."""

FILE_VARIABLE = "VEILMQ_CONFIG"

VARIABLES_OF_OTHERS = frozenset({FILE_VARIABLE, "VEILMQ_ENDPOINT"})
"""Variables with our prefix that are not settings: the settings file, and the endpoint of client commands."""


class SourceValue(NamedTuple):
    """A value and a description of its source."""

    value: Any
    origin: str


def resolve(*, flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None = None) -> ServerSettings:
    """Return the effective settings; raises ``SettingError``.

    ``flags`` maps names of settings to raw values of the flags used. ``file`` is the file that a flag names; by default
    the one that the environment names, or ``veilmq.toml`` if it exists.
    """
    values = _from_file(file, environment) | _from_environment(environment)
    values |= _read(
        {row.name: SourceValue(flags[row.name], f"flag {row.flag}") for row in SETTINGS if row.name in flags}
    )
    if not any(values[name].value for name in _PLACES if name in values):
        values.pop("data", None)  # a stronger source than that of memory = true has memory = false
    values.pop(MEMORY.name, None)
    try:
        return ServerSettings(**{name: each.value for name, each in values.items()})
    except SettingError as error:
        origin = values[error.name].origin if error.name in values else "default"
        raise SettingError(error.name, value=error.value, origin=origin, problem=error.problem) from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, SourceValue]:
    known = {row.variable: row.name for row in SETTINGS}
    values: dict[str, SourceValue] = {}
    variables = {name for name in environment if name.startswith(ENVIRONMENT_PREFIX)} - VARIABLES_OF_OTHERS
    links = {name for name in variables if _LINK.fullmatch(environment[name])}
    kubernetes = {
        name for name in variables if _SERVICE.fullmatch(name) or (name in links and _SERVICE_PORT.fullmatch(name))
    }
    variables -= kubernetes - known.keys()
    _refuse_unknown(variables, known=known, origin="environment")
    for name in sorted(variables):
        values[known[name]] = SourceValue(environment[name], f"environment variable {name}")
        if name in links:
            raise SettingError(known[name], value=environment[name], origin=values[known[name]].origin, problem=REMEDY)
    return _read(values)


def _from_file(named: Path | None, environment: Mapping[str, str]) -> dict[str, SourceValue]:
    path = Path(environment.get(FILE_VARIABLE, FILE_NAME)) if named is None else named
    if named is None and FILE_VARIABLE not in environment and not path.exists():
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingError("config", value=path, problem=f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise SettingError("config", value=path, problem=f"is not a TOML file: {error}") from None
    declared = [name for name in DECLARATIONS if isinstance(values.get(name), dict)]
    values = {name: value for name, value in values.items() if name not in declared}
    if declared and values.setdefault("queues_file", str(path)) != str(path):
        problem = f"the file has the table {declared[0]} too; keep one of them"
        raise SettingError("queues_file", value=values["queues_file"], origin=f"file {path}", problem=problem)
    _refuse_unknown(values, known=[row.name for row in SETTINGS], origin=f"file {path}")
    return _read({name: SourceValue(value, f"file {path}") for name, value in values.items()})


def _refuse_unknown(names: Iterable[str], *, known: Iterable[str], origin: str) -> None:
    known = list(known)
    for name in sorted(set(names) - set(known)):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}"
        raise SettingError(name, origin=origin, problem=f"unknown setting; {hint}")


def _read(raw: Mapping[str, SourceValue]) -> dict[str, SourceValue]:
    """Read one source; its choice of a store overrides all choices of weaker sources."""
    values: dict[str, SourceValue] = {}
    for row in SETTINGS:
        if row.name in raw:
            value, origin = raw[row.name]
            try:
                values[row.name] = SourceValue(row.kind.read(value), origin)
            except ValueError:
                problem = f"must be {row.kind.allowed}"
                raise SettingError(row.name, value=value, origin=origin, problem=problem) from None
    places = [name for name in _PLACES if name in values and values[name].value]
    if len(places) > 1:
        name, other = places[:2]
        problem = f"{other} is given too; give {ONE_STORE}"
        raise SettingError(name, value=values[name].value, origin=values[name].origin, problem=problem)
    for name in places:
        values = dict.fromkeys(_PLACES, SourceValue(None, values[name].origin)) | values
    return values
