"""The URLs of stores as people write them: one of a database, or several with commas between.

A URL of PostgreSQL may have commas of its own (several hosts), so what divides two URLs is a comma before a scheme.
"""

import re
from urllib.parse import parse_qs, urlsplit

SCHEMES = ("postgresql", "postgres")

_URL = re.compile(rf"({'|'.join(SCHEMES)})://(?:(?!://)[!-~])+")
_PLACE = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::([0-9]{0,5}))?")
_PORT_MAX = 65_535
_BETWEEN = re.compile(rf"[,\s]+(?=(?:{'|'.join(SCHEMES)})://)")
_PASSWORD = re.compile(r"(?<=://)([^:@/\s]*):\S*@")  # up to the last @: a password may have others
_PASSWORD_OPTION = re.compile(r"(?<=[?&])((?:ssl)?password)=[^&\s]*")


def split_urls(text: str) -> tuple[str, ...]:
    """Return the URLs in ``text``, in order; raises ``ValueError`` for anything else."""
    urls = tuple(_BETWEEN.split(text.strip().rstrip(",")))
    if not all(_URL.fullmatch(url) and _has_ports(url) for url in urls):
        raise ValueError(without_passwords(text))
    return urls


def _has_ports(url: str) -> bool:
    """Return whether each port in ``url`` is one: the driver would report it late, in its own words."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket without its other one
        return False
    options = [f":{port}" for each in parse_qs(parts.query).get("port", ()) for port in each.split(",")]
    places = map(_PLACE.fullmatch, [*parts.netloc.rpartition("@")[2].split(","), *options])
    return all(place is not None and 1 <= int(place[1] or 1) <= _PORT_MAX for place in places)


def bare(url: str) -> str:
    """Return ``url`` without its passwords."""
    return re.sub(r"(?<=[?&])(?:ssl)?password=[^&\s]*&?", "", _PASSWORD.sub(r"\1@", url)).rstrip("?&")


def without_passwords(text: str) -> str:
    """Return ``text`` with stars in place of the passwords of the URLs in it."""
    return ",".join(_PASSWORD_OPTION.sub(r"\1=***", _PASSWORD.sub(r"\1:***@", url)) for url in _BETWEEN.split(text))
