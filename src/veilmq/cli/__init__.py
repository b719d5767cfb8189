"""The command line: one file per command, one table of them in ``app``.

Answers go to standard output, errors as one line to standard error. Exit codes: 0 done, 1 failed, 2 asked wrongly,
130 interrupted, 141 the reader of the output went away.
"""

from veilmq.cli.app import main

__all__ = ["main"]
