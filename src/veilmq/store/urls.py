"""Store URLs in settings: one database URL, or several separated by commas.

A PostgreSQL URL may itself contain commas (several hosts), so only a comma before a scheme separates URLs.
"""

import re
from urllib.parse import parse_qs, urlsplit

SCHEMES = ("postgresql", "postgres")

_URL = re.compile(rf"({'|'.join(SCHEMES)})://(?:(?!://)[!-~])+")
_HOST = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::([0-9]{0,5}))?")
_PORT_MAX = 65_535
_SEPARATOR = re.compile(rf"[,\s]+(?=(?:{'|'.join(SCHEMES)})://)")
_PASSWORD = re.compile(r"(?<=://)([^:@/\s]*):\S*@")  # up to the last @: a password may have others
_PASSWORD_OPTION = re.compile(r"(?<=[?&])((?:ssl)?password)=[^&\s]*")


def split_urls(text: str) -> tuple[str, ...]:
    """Return the URLs in ``text``, in order; raises ``ValueError`` if one is invalid."""
    urls = tuple(_SEPARATOR.split(text.strip().rstrip(",")))
    if not all(_URL.fullmatch(url) and _has_ports(url) for url in urls):
        raise ValueError(without_passwords(text))
    return urls


def _has_ports(url: str) -> bool:
    """Return whether each port in ``url`` is valid; the driver reports that late and unclearly."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an unbalanced bracket
        return False
    options = [f":{port}" for each in parse_qs(parts.query).get("port", ()) for port in each.split(",")]
    hosts = map(_HOST.fullmatch, [*parts.netloc.rpartition("@")[2].split(","), *options])
    return all(host is not None and 1 <= int(host[1] or 1) <= _PORT_MAX for host in hosts)


def remove_passwords(url: str) -> str:
    return re.sub(r"(?<=[?&])(?:ssl)?password=[^&\s]*&?", "", _PASSWORD.sub(r"\1@", url)).rstrip("?&")


def without_passwords(text: str) -> str:
    """Return ``text`` with the passwords of its URLs replaced by stars."""
    return ",".join(_PASSWORD_OPTION.sub(r"\1=***", _PASSWORD.sub(r"\1:***@", url)) for url in _SEPARATOR.split(text))
