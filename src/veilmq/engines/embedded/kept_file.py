"""A small secret beside the database of a data folder: made once, whole or not there, for its owner alone."""

import os
from collections.abc import Callable
from pathlib import Path

from veilmq.engines.embedded.folder import FolderError


def kept_file(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return what is in the file at ``path``, made with what ``make`` gives if need be; raises ``FolderError``."""
    try:
        if path.exists():
            return path.read_bytes()
        content = make()
        _write(path, content)
    except OSError as error:
        raise FolderError(f"{path} cannot be read or written: {error.strerror}.") from None
    return content


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".new")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
