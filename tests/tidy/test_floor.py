"""Serial tests run alone, the others beside each other, and who waits to be alone is not passed for ever."""

import fcntl
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import floor, need


def is_free(lock: Path, kind: int) -> bool:
    """Return whether somebody else could take the lock file in the way of `kind` at this moment."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(file, fcntl.LOCK_UN)
        return True


def test_a_group_has_one_worker(request: pytest.FixtureRequest) -> None:
    """The name of a group ends the ids of its tests: by that pytest-xdist gives them to one worker."""
    if hasattr(request.config, "workerinput"):
        grouped = [item.nodeid for item in request.session.items if item.get_closest_marker("xdist_group")]
        assert [name for name in grouped if "@" not in name] == []


def test_ordinary_tests_share_the_floor(tmp_path: Path) -> None:
    with floor(tmp_path, alone=False), floor(tmp_path, alone=False):
        assert is_free(tmp_path / "floor", fcntl.LOCK_SH)
        assert not is_free(tmp_path / "floor", fcntl.LOCK_EX)


def test_a_serial_test_has_the_floor_to_itself(tmp_path: Path) -> None:
    def fail() -> None:
        with floor(tmp_path, alone=True):
            assert not is_free(tmp_path / "floor", fcntl.LOCK_SH)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert is_free(tmp_path / "floor", fcntl.LOCK_EX)


def test_a_waiting_serial_test_closes_the_gate(tmp_path: Path) -> None:
    """While a serial test waits for those on the floor to end, no new one enters."""
    alone = threading.Event()

    def run_alone() -> None:
        with floor(tmp_path, alone=True):
            alone.set()

    waiting = threading.Thread(target=run_alone)
    with floor(tmp_path, alone=False):
        waiting.start()
        deadline = time.monotonic() + 10
        while is_free(tmp_path / "gate", fcntl.LOCK_SH):
            assert time.monotonic() < deadline, "the serial test did not come to the gate"
        assert not alone.is_set()
    waiting.join(timeout=10)
    assert alone.is_set()


# A service that is missing skips a test on a laptop and fails it in CI.


@pytest.mark.parametrize("ci", ["", "0", "false", "true"])
def test_a_missing_service_skips_on_a_laptop_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    need("/usr/bin/unicorn", "a unicorn")
    with pytest.raises(pytest.fail.Exception if ci == "true" else pytest.skip.Exception, match="needs a unicorn"):
        need(None, "a unicorn")
