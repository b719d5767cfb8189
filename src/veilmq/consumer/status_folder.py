"""Where the workers of a user are found on their machine: a folder of sockets that only this user may enter.

It is below ``XDG_RUNTIME_DIR``, else below the folder for temporary files, with the user's number in its name. There
anybody could have made it first, so one that is not the user's own, or open to others, is not used.

A worker that was killed leaves its socket behind, and nobody listens there: whoever looks, and each worker that begins,
removes such sockets. So that no worker's socket is taken for such a one before it answers, it gets its name when it
does.
"""

import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 1.0
"""How long a worker may take to answer."""

_SUFFIX = ".sock"
_READ_BYTES = 65_536


class FolderUnfit(OSError):
    """The folder is not the user's own, or others may enter it; says what to do."""


def folder() -> Path:
    """Return the folder, whether it is there or not."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "veilmq"
    return Path(tempfile.gettempdir()) / f"veilmq-{os.getuid()}"


def make_folder() -> Path:
    """Return the folder, made where it was missing; raises ``OSError``."""
    path = folder()
    path.mkdir(mode=0o700, exist_ok=True)
    _check(path)
    return path


def listen(name: str) -> tuple[socket.socket, Path]:
    """Return a socket that listens in the folder under ``name``, with its path; raises ``OSError``."""
    path = make_folder() / f"{name}{_SUFFIX}"
    for _ in _answers(_connect):
        pass
    made = path.with_suffix(".new")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(made))
        made.chmod(0o600)
        listener.listen()
        made.rename(path)
    except OSError:
        listener.close()
        made.unlink(missing_ok=True)
        raise
    return listener, path


def answers() -> Iterator[tuple[Path, bytes | None]]:
    """Yield what each worker of the user says at its socket, ``None`` where one does not answer in time.

    Sockets at which nobody listens any more are removed. Raises ``OSError`` for a folder that is unfit.
    """
    yield from _answers(_ask)


def _answers(ask: Callable[[Path], bytes]) -> Iterator[tuple[Path, bytes | None]]:
    path = folder()
    if not path.is_dir():
        return
    _check(path)
    for place in sorted(path.glob(f"*{_SUFFIX}")):
        try:
            answer = ask(place)
        except (ConnectionRefusedError, FileNotFoundError):  # killed, or gone meanwhile
            place.unlink(missing_ok=True)
        except OSError:
            yield place, None
        else:
            yield place, answer


def _ask(place: Path) -> bytes:
    with _connected(place) as asking:
        parts = []
        while part := asking.recv(_READ_BYTES):
            parts.append(part)
    return b"".join(parts)


def _connect(place: Path) -> bytes:
    """Ask nothing: whether somebody listens is what a worker that begins wants to know."""
    with _connected(place):
        return b""


@contextmanager
def _connected(place: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(PATIENCE_S)
        asking.connect(os.fspath(place))
        yield asking


def _check(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise FolderUnfit(f"{path} must be a folder of this user alone (mode 0700); remove it, or set XDG_RUNTIME_DIR")
