"""veilmq on a disk with slow syncs: `python benchmarks/slow_sync.py MS serve …`.

It is run by path, so it slows down whichever checkout is imported.
"""

import sys
import time
from importlib import import_module
from typing import Any

from veilmq.cli import main

MODULES = ("veilmq.store.sqlite.database", "veilmq.engines.embedded.database")
"""Where the database of a data folder commits: here, and before both engines became one store."""


def slow_down(sync_s: float) -> None:
    """Make each commit sleep for `sync_s`, without the GIL, as a sync does."""
    for name in MODULES:
        try:
            database: Any = import_module(name).Database
        except ModuleNotFoundError:
            continue
        commit = database.commit

        def slow(self: Any, commit: Any = commit) -> None:
            commit(self)
            time.sleep(sync_s)

        database.commit = slow


if __name__ == "__main__":
    milliseconds = float(sys.argv.pop(1))
    slow_down(milliseconds / 1000)
    sys.exit(main())
