"""Spark's daemon of Python workers (``spark.python.daemon.module``) without tracebacks of closed connections.

At the normal end of a session Spark disconnects idle workers, and its own daemon prints a traceback for each. This
module suppresses those tracebacks and prints all others.
"""

import sys
import traceback
from collections.abc import Callable

from pyspark import daemon


def _print_failures(print_exc: Callable[[], None] = traceback.print_exc) -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        print_exc()


if __name__ == "__main__":
    traceback.print_exc = _print_failures  # type: ignore[assignment]  # the daemon passes no arguments
    daemon.manager()
