"""The files that pages load, as they are in this package: found once, told by their content, kept by browsers."""

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
PREFIX = "/console/assets/"
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    """A file: its bytes, its media type, and the digest that is in its address."""

    body: bytes
    kind: str
    digest: str


def _read(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(body, _KINDS[path.suffix], sha256(body).hexdigest()[:12])


ASSETS: dict[str, Asset] = {
    path.relative_to(FOLDER).as_posix(): _read(path) for path in sorted(FOLDER.rglob("*")) if path.suffix in _KINDS
}
"""Every file by its path in this folder."""


def address_of(name: str) -> str:
    """Return the address of the file ``name``; raises ``KeyError`` for one that is not there."""
    return f"{PREFIX}{name}?v={ASSETS[name].digest}"
