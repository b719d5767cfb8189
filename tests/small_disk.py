"""Small file systems that tests can fill."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import need

MIB = 1_048_576


@contextlib.contextmanager
def small_file_system(folder: Path, *, size_bytes: int) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, timeout=30, check=False).returncode == 0
    need(mounted, "the right to mount a small file system (root)")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], timeout=30, check=True)


def resize(folder: Path, *, size_bytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size_bytes}", str(folder)], timeout=30, check=True)
