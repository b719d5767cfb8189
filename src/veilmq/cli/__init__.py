"""The command line: commands in files of one topic each, one table of them in ``app``.

Results go to standard output, errors as one line to standard error; ``docs/cli.md`` lists the exit codes.
"""

import gc
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` (default: those of the process) name, and return its exit code."""
    if arguments is None:
        gc.disable()  # until the command begins: imports leave no garbage, and its passes cost a quarter of a start
    from veilmq.cli.app import run

    return run(arguments)
