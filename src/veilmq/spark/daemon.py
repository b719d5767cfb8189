"""Spark's daemon of Python workers (``spark.python.daemon.module``) without tracebacks of closed connections.

At the normal end of a session Spark disconnects idle workers, and its own daemon prints a traceback for each. This
module suppresses those tracebacks and prints all others. Spark's planner ignores the setting and starts
``pyspark.daemon``; ``datasource``, which its workers import, calls ``suppress_tracebacks`` there.
"""

import sys
import traceback
from collections.abc import Callable


def suppress_tracebacks() -> None:
    """Replace the function with which the daemon prints the exceptions of its workers."""

    def print_exc(print_any: Callable[[], None] = traceback.print_exc) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            print_any()

    traceback.print_exc = print_exc  # type: ignore[assignment]  # the daemon passes no arguments


if __name__ == "__main__":
    from pyspark import daemon

    suppress_tracebacks()
    daemon.manager()
