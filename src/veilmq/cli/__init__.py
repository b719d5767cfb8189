"""The command line: ``app`` has the table of commands, the other files have the commands by topic.

Results are printed to standard output, errors as one line to standard error; ``docs/cli.md`` lists the exit codes.
"""

import gc
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in ``arguments`` (default: those of the process), and return its exit code."""
    if arguments is None:
        gc.disable()  # until the command begins: imports leave no garbage, and collections are a quarter of the start
    from veilmq.cli.app import run

    return run(arguments)
