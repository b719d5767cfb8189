"""What becomes of a copy to a folder that does not come to its end."""

import asyncio
from pathlib import Path

import pytest

from veilmq.core.settings import QueueSettings
from veilmq.engines.copying import CopiedMessage, CopiedQueue, Remembered
from veilmq.engines.embedded import FolderError
from veilmq.engines.embedded.copy_target import FolderTarget

JOBS = CopiedQueue(1, "000000000000/jobs", QueueSettings(), b"{}", 0, 0)
SENT = CopiedMessage(1, b"i" * 16, "body", b"", 8, 1_000, 1_000, 1_000)


async def fill(target: FolderTarget, message: CopiedMessage) -> None:
    """Give it one queue with one message."""
    await target.begin({}, now_ms=2_000, last_queue=1)
    await target.add_queue(JOBS)
    await target.add_messages(JOBS, [message])
    await target.remember(Remembered([], [], [], [], []))


def test_what_was_not_finished_leaves_nothing(tmp_path: Path) -> None:
    """No folder, nor what was to become one."""
    with FolderTarget(tmp_path / "copy") as target:
        asyncio.run(fill(target, SENT))
        assert (tmp_path / "copy.unfinished").exists()
    assert list(tmp_path.iterdir()) == []


def test_what_the_doctor_finds_fault_with_is_not_kept(tmp_path: Path) -> None:
    """A message that was received, and nobody knows when."""

    async def whole(target: FolderTarget) -> None:
        await fill(target, SENT._replace(receive_count=1, visible_at_ms=3_000))
        await target.finish()

    with pytest.raises(FolderError, match="has its count, its epoch and its times"), FolderTarget(tmp_path / "c") as it:
        asyncio.run(whole(it))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    """Though it is empty."""
    with pytest.raises(FolderError, match="nothing is replaced"):
        FolderTarget(tmp_path)
