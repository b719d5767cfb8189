"""The parent of Spark's Python workers (``spark.python.daemon.module``), as Spark has it, but for what it prints.

When a session ends well, Spark cuts off the workers that wait for more to do, and its own daemon prints a traceback for
each that finds its pipe broken. Other failures are printed as ever.
"""

import sys
import traceback
from collections.abc import Callable

from pyspark import daemon


def _print_failures(print_exc: Callable[[], None] = traceback.print_exc) -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        print_exc()


if __name__ == "__main__":
    traceback.print_exc = _print_failures  # type: ignore[assignment]  # the daemon calls it without arguments
    daemon.manager()
