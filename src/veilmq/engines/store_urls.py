"""The URLs of stores as people write them: one of a database, or several with commas between.

A URL of PostgreSQL may have commas of its own (several hosts), so what divides two URLs is a comma before a scheme.
"""

import re

SCHEMES = ("postgresql", "postgres")

_URL = re.compile(rf"({'|'.join(SCHEMES)})://(?:(?!://)[!-~])+")
_BETWEEN = re.compile(rf"[,\s]+(?=(?:{'|'.join(SCHEMES)})://)")
_PASSWORD = re.compile(r"(?<=://)([^:@/\s]*):\S*@")  # up to the last @, whatever stands in a password
_PASSWORD_OPTION = re.compile(r"(?<=[?&])((?:ssl)?password)=[^&\s]*")


def split(text: str) -> tuple[str, ...]:
    """Return the URLs in ``text``, in order; raises ``ValueError`` for anything else."""
    urls = tuple(_BETWEEN.split(text.strip().rstrip(",")))
    if not all(_URL.fullmatch(url) for url in urls):
        raise ValueError(without_passwords(text))
    return urls


def join(urls: tuple[str, ...]) -> str:
    """Return what ``split`` makes ``urls`` of."""
    return ",".join(urls)


def without_passwords(text: str) -> str:
    """Return ``text``, whatever it is, with stars where a URL in it has a password."""
    return ",".join(_PASSWORD_OPTION.sub(r"\1=***", _PASSWORD.sub(r"\1:***@", url)) for url in _BETWEEN.split(text))
