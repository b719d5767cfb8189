"""Calls that are made again while the server does not answer: it restarts, or is replaced.

Only for calls that have the same effect twice, as all calls about claims have.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from veilmq.client.errors import ClientError, Unreachable

PAUSE_S_MAX = 2.0

T = TypeVar("T")

_log = logging.getLogger("veilmq.spark")


def patiently(call: Callable[[], T], patience_s: float) -> T:
    """Return what ``call`` returns; while nobody answers it is tried again, for ``patience_s`` at the most.

    Raises ``ClientError`` for a refusal at once, for a failure of the server and ``Unreachable`` at the end.
    """
    until_s = time.monotonic() + patience_s
    pause_s = 0.1
    while True:
        try:
            return call()
        except (ClientError, Unreachable) as error:
            if _is_refusal(error) or time.monotonic() + pause_s > until_s:
                raise
            _log.warning("%s Trying again.", error)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _is_refusal(error: ClientError | Unreachable) -> bool:
    return isinstance(error, ClientError) and error.status < 500
