"""Room on the disk: refused while it is short, taken again when there is some, whoever asks."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.internals.engines.embedded.store import Store
from veilmq.core.errors import StoreFull
from veilmq.engines.embedded.space import Space


def test_a_freed_disk_takes_sends_again_though_nothing_else_commits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    store.create()
    with monkeypatch.context() as full:
        full.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=0, f_frsize=4_096))
        store.space.look()
        assert isinstance(store.send("a")[0], StoreFull)
        store.now_ms += 1_000
        assert isinstance(store.send("a")[0], StoreFull)
    assert isinstance(store.send("a")[0], StoreFull)  # it looks once a second
    store.now_ms += 1_000
    assert not isinstance(store.send("a")[0], StoreFull)
    store.close()


def test_a_look_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Store(tmp_path)

    def fail(folder: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(os, "statvfs", fail)
    store.space.look()
    assert not store.space.is_short
    store.close()


def test_a_store_in_memory_is_never_short_of_disk() -> None:
    store = Store()
    space = Space(folder=None, journal=store.journal, options=store.options)
    space.look()
    assert not space.is_short
    store.close()
