"""A worker that can be seen: it says what it is doing to whoever of its user connects to its socket.

Costs a thread that waits. Nothing of it is worth failing for: where there can be no socket, the worker runs without.
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from veilmq.consumer.status_folder import PATIENCE_S, listen

_log = logging.getLogger("veilmq.consumer")


@contextmanager
def announced(tell: Callable[[], bytes]) -> Iterator[None]:
    """Answer with what ``tell`` returns, whenever somebody asks, while the context lasts."""
    try:
        listener, path = listen(f"{os.getpid()}-{secrets.token_hex(4)}")
    except (OSError, AttributeError) as error:  # no folder, a path that is too long, a system without such sockets
        _log.info("this worker cannot be seen by veilmq top: %s", error)
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_answer, args=(listener, tell, over), name="veilmq-status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        _wake(listener, path)
        path.unlink(missing_ok=True)
        listener.close()


def _answer(listener: socket.socket, tell: Callable[[], bytes], over: threading.Event) -> None:
    while not over.is_set():
        try:
            asking, _ = listener.accept()
        except OSError:  # closed, or there is nothing to answer with
            return
        with asking, contextlib.suppress(OSError, RuntimeError):  # gone, or it changed while it was read: ask again
            asking.settimeout(PATIENCE_S)
            asking.sendall(tell())


def _wake(listener: socket.socket, path: Path) -> None:
    """Have the thread look whether it is over: closing its socket would not wake it.

    Shutting it down does on Linux, connecting everywhere, unless somebody has removed the path.
    """
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waking:
        waking.settimeout(PATIENCE_S)
        waking.connect(os.fspath(path))
