"""Places that exported files go to, and those that are refused with what to do."""

import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import parquet

from veilmq.events import EventsError
from veilmq.events.exporter import open_target
from veilmq.events.parquet import encoded

TABLE = pa.table({name: ["a"] for name in ("queue", "key", "group_hash", "outcome", "node")})
ROWS = TABLE.append_column("event", pa.array([1]))
for instant in ("sent_at", "received_at", "closed_at"):
    ROWS = ROWS.append_column(instant, pa.array([1], pa.timestamp("ms")))
FILE = encoded(ROWS)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_is_made_and_a_file_appears_whole(tmp_path: Path, scheme: str) -> None:
    folder = tmp_path / "a" / "b"
    target = open_target(f"{scheme}{folder}")
    assert folder.is_dir()
    target.put("date=1/hour=2", "x.parquet", FILE)
    target.put("date=1/hour=2", "x.parquet", FILE)
    (file,) = [path for path in folder.rglob("*") if path.is_file()]
    assert file == folder / "date=1" / "hour=2" / "x.parquet"


def test_what_is_put_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file before it has its name, then its folder and those above it, which may be new, up to the root's."""
    synced: list[str] = []

    def note(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()).removeprefix(str(tmp_path)))

    target = open_target(str(tmp_path / "events"))
    monkeypatch.setattr(os, "fsync", note)
    target.put("date=1/hour=2", "x.parquet", FILE)
    hour = "/events/date=1/hour=2"
    written, *folders = synced
    assert re.fullmatch(rf"{hour}/_x\.parquet\.[0-9a-f]{{8}}\.tmp", written)
    assert folders == [hour, "/events/date=1", "/events", ""]


def test_what_a_writer_that_was_killed_left_goes_with_the_file(tmp_path: Path) -> None:
    """Two may write the same file at one time, each under a name of its own."""
    hour = tmp_path / "date=1" / "hour=2"
    hour.mkdir(parents=True)
    for name in ("_x.parquet.0badcafe.tmp", "_y.parquet.0badcafe.tmp"):
        (hour / name).write_text("half a file")
    open_target(str(tmp_path)).put("date=1/hour=2", "x.parquet", FILE)
    assert sorted(path.name for path in hour.iterdir()) == ["_y.parquet.0badcafe.tmp", "x.parquet"]


def test_a_relative_folder_counts_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_target("events").root == str(tmp_path / "events")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EventsError, match=r"cannot be made: .*\."):
        open_target(str(tmp_path / "file" / "events"))


def test_a_url_of_fsspec() -> None:
    target = open_target("memory://bucket/events")
    target.put("date=1/hour=2", "x.parquet", FILE)
    memory = fsspec.filesystem("memory")
    (path,) = memory.find("/bucket/events")
    assert path == "/bucket/events/date=1/hour=2/x.parquet"
    with memory.open(path) as file:
        assert parquet.read_table(file).num_rows == 1


def test_a_file_is_replaced_where_moving_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that is begun again finds files of the one before, and would fail for ever."""
    moves: Callable[..., None] = MemoryFileSystem.mv

    def move(memory: Any, path1: str, path2: str, **options: Any) -> None:
        if memory.exists(path2) or "closed" in path2:
            raise FileExistsError(path2)
        moves(memory, path1, path2, **options)

    monkeypatch.setattr(MemoryFileSystem, "mv", move)
    target = open_target("memory://unmoved/events")
    for _ in range(2):
        target.put("hour=2", "x.parquet", FILE)
    assert [path.rpartition("/")[2] for path in fsspec.filesystem("memory").find("/unmoved")] == ["x.parquet"]
    with pytest.raises(OSError, match="closed"):
        target.put("hour=2", "closed.parquet", FILE)


def test_a_url_that_nobody_knows() -> None:
    with pytest.raises(EventsError, match=r"elsewhere://bucket/events .* cannot be used"):
        open_target("elsewhere://bucket/events")


def test_a_url_that_pyarrow_does_not_know_needs_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(EventsError, match="pip install fsspec"):
        open_target("elsewhere://bucket/events")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("elsewhere://user:geheim@host/events", "elsewhere://host/events"),
        ("s3://AKID:geheim@bucket/events?bogus=geheim", "s3://bucket/events"),
        ("s3://AKID:ge/geheim@bucket/[", "s3://bucket/["),
        ("ftp://user:geheim@127.0.0.1:1/events", "ftp://127.0.0.1:1/events"),
    ],
)
@pytest.mark.parametrize("module", ["fsspec.core", "s3fs"])
def test_secrets_of_a_url_are_not_shown(url: str, shown: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence ends in logs, and so does what Python says that it came from; whatever fails says so in words."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EventsError) as caught:
        open_target(url)
    assert shown in str(caught.value)
    assert "geheim" not in "".join(traceback.format_exception(caught.value))
