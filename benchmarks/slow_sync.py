"""veilmq on a disk whose sync takes longer: `python -m benchmarks.slow_sync MS serve …`; both stores commit alike."""

import sys
import time

from veilmq.cli import main
from veilmq.engines.embedded.database import Database


def slow_down(sync_s: float) -> None:
    """Have each commit sleep for `sync_s`, without the GIL as a sync does."""
    commit = Database.commit

    def slow(self: Database) -> None:
        commit(self)
        time.sleep(sync_s)

    Database.commit = slow  # type: ignore[method-assign]
    for kind in Database.__subclasses__():
        if "commit" in vars(kind):
            _wrap(kind, sync_s)


def _wrap(kind: type[Database], sync_s: float) -> None:
    """A subclass that calls `super().commit()` is slow already."""


if __name__ == "__main__":
    milliseconds = float(sys.argv.pop(1))
    import veilmq.engines.embedded  # noqa: F401 - its journal commits by Database.commit

    slow_down(milliseconds / 1000)
    sys.exit(main())
