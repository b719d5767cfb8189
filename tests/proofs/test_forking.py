"""A fork is given what a process is that Python is started for, and its end is seen."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proofs.forking import Forked, run

GIVEN = "import os, sys; print(os.getcwd(), dict(os.environ), sys.argv, sys.stdin.read()); sys.exit('complaint')"
ENDLESS = "import signal; print('begun', flush=True); signal.pause()"
PIPE = subprocess.PIPE


def test_it_has_its_folder_environment_arguments_and_files(tmp_path: Path) -> None:
    """Nothing of the process that it is a fork of."""
    words = [sys.executable, "-c", GIVEN, "an argument"]
    how = {"env": {"A": "b"}, "cwd": tmp_path, "stdin": subprocess.DEVNULL, "stdout": PIPE, "stderr": PIPE}
    done = run(words, text=True, timeout=60, **how)
    assert done.stdout == f"{tmp_path} {{'A': 'b'}} ['-c', 'an argument'] \n"
    assert (done.returncode, done.stderr) == (1, "complaint\n")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, -2)], ids=["kill", "interrupt"])
def test_a_signal_ends_it(number: signal.Signals, status: int) -> None:
    """Its status says which, while another one runs on."""
    words = [sys.executable, "-c", ENDLESS]
    with Forked(words, stdout=PIPE, stderr=PIPE) as first, Forked(words, stdout=PIPE) as second:
        for each in (first, second):
            assert each.stdout is not None
            assert each.stdout.readline() == b"begun\n"
        assert (first.poll(), second.poll()) == (None, None)
        first.send_signal(number)
        first.communicate(60)
        assert (first.returncode, second.poll()) == (status, None)
        second.kill()
        assert second.wait(60) == -9
