"""Room on the disk: refused while it is short, taken again when there is some, whoever asks."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.store.host import Host, hosting
from veilmq.core.errors import StoreFull


def no_room(folder: object) -> SimpleNamespace:
    """Stand in for a file system that is full."""
    return SimpleNamespace(f_bavail=0, f_frsize=4_096)


def refuses(host: Host) -> bool:
    """Tell whether a send is refused."""
    try:
        host.send("a")
    except StoreFull:
        return True
    return False


def test_a_freed_disk_takes_sends_again_though_nothing_else_commits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with hosting(tmp_path / "store") as host:
        host.create()
        with monkeypatch.context() as full:
            full.setattr(os, "statvfs", no_room)
            host.engine._database.check_room()
            assert refuses(host)
            host.advance(1_000)
            assert refuses(host)
        assert refuses(host), "it looks once a second"
        host.advance(1_000)
        assert not refuses(host)


def test_a_look_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(folder: object) -> None:
        raise OSError("gone")

    with hosting(tmp_path / "store") as host, monkeypatch.context() as broken:
        host.create()
        broken.setattr(os, "statvfs", fail)
        assert not refuses(host)


def test_a_store_in_memory_is_never_short_of_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    with hosting(None) as host, monkeypatch.context() as full:
        host.create()
        full.setattr(os, "statvfs", no_room)
        assert not refuses(host)
