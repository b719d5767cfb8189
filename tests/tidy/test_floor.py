"""Serial tests run alone, other tests concurrently; a waiting serial test is not starved."""

import fcntl
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import floor, need


def is_free(lock: Path, kind: int) -> bool:
    """Return whether a lock of `kind` could be acquired now."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(file, fcntl.LOCK_UN)
        return True


def test_a_group_has_one_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist assigns tests to a worker by the group name at the end of their ids."""
    if hasattr(request.config, "workerinput"):
        grouped = [item.nodeid for item in request.session.items if item.get_closest_marker("xdist_group")]
        assert [name for name in grouped if "@" not in name] == []


def test_other_tests_share_the_lock(tmp_path: Path) -> None:
    with floor(tmp_path, alone=False), floor(tmp_path, alone=False):
        assert is_free(tmp_path / "floor", fcntl.LOCK_SH)
        assert not is_free(tmp_path / "floor", fcntl.LOCK_EX)


def test_a_serial_test_holds_the_lock_exclusively(tmp_path: Path) -> None:
    def fail() -> None:
        with floor(tmp_path, alone=True):
            assert not is_free(tmp_path / "floor", fcntl.LOCK_SH)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert is_free(tmp_path / "floor", fcntl.LOCK_EX)


def test_no_test_starts_while_a_serial_test_waits(tmp_path: Path) -> None:
    alone = threading.Event()

    def run_alone() -> None:
        with floor(tmp_path, alone=True):
            alone.set()

    waiting = threading.Thread(target=run_alone)
    with floor(tmp_path, alone=False):
        waiting.start()
        deadline = time.monotonic() + 60
        while is_free(tmp_path / "gate", fcntl.LOCK_SH):
            assert time.monotonic() < deadline, "the serial test did not take the gate"
        assert not alone.is_set()
    waiting.join(timeout=60)
    assert alone.is_set()


@pytest.mark.parametrize("ci", ["", "0", "false", "true"])
def test_a_missing_service_skips_on_a_laptop_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    need("/usr/bin/unicorn", "a unicorn")
    with pytest.raises(pytest.fail.Exception if ci == "true" else pytest.skip.Exception, match="needs a unicorn"):
        need(None, "a unicorn")
