"""The static files of pages; their URLs contain a digest, so browsers may cache them forever."""

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
PREFIX = "/console/assets/"
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    """A file with its media type, and the digest for its URL."""

    body: bytes
    kind: str
    digest: str


def _read(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(body, _KINDS[path.suffix], sha256(body).hexdigest()[:12])


ASSETS: dict[str, Asset] = {
    path.relative_to(FOLDER).as_posix(): _read(path) for path in sorted(FOLDER.rglob("*")) if path.suffix in _KINDS
}


def address_of(name: str) -> str:
    """Return the URL of the file ``name``; raises ``KeyError``."""
    return f"{PREFIX}{name}?v={ASSETS[name].digest}"
