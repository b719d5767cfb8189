"""Where commits are made: in place while syncs are quick, in the thread while they are not, and back again."""

import asyncio
import threading
from typing import cast

from veilmq.store.sqlite.database import Database
from veilmq.store.sqlite.store import Committer


class Disk:
    """A database and a stopwatch: each commit takes as long as it is told to."""

    def __init__(self) -> None:
        """Begin with quick syncs."""
        self.now_s = 0.0
        self.sync_s = 0.0002
        self.moves_log = False
        self.threads: list[threading.Thread] = []

    def commit(self) -> None:
        """Note where it happens."""
        self.now_s += self.sync_s
        self.threads.append(threading.current_thread())

    def check_room(self) -> None:
        """Find room enough."""


async def in_place(disk: Disk, committer: Committer, done: asyncio.Queue[object], commits: int) -> int:
    """Make so many commits; return how many were made in the event loop's thread."""
    disk.threads.clear()
    for _ in range(commits):
        committer.commit()
        assert await done.get() is None
    return sum(thread is threading.current_thread() for thread in disk.threads)


def test_the_usual_length_of_a_sync_decides() -> None:
    async def run() -> None:
        disk, done = Disk(), asyncio.Queue[object]()
        committer = Committer(cast(Database, disk), done.put_nowait, in_thread=True, stopwatch=lambda: disk.now_s)
        assert await in_place(disk, committer, done, 100) == 100
        disk.sync_s = 0.02
        assert await in_place(disk, committer, done, 300) <= 2, "a slow disk keeps the loop for one sync in many"
        disk.sync_s = 0.0002
        await in_place(disk, committer, done, 3_000)
        assert await in_place(disk, committer, done, 100) == 100, "a disk that is quick again is noticed"
        disk.moves_log = True
        assert await in_place(disk, committer, done, 3) == 0, "moving the log takes long, whatever the disk"
        committer.close()

    asyncio.run(run())
