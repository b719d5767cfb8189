"""A small file system of a test's own, to be filled to its end."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import need

MIB = 1_048_576


@contextlib.contextmanager
def small_file_system(folder: Path, *, size_bytes: int) -> Iterator[None]:
    """Mount a file system of that size on `folder`."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, timeout=30, check=False).returncode == 0
    need(mounted, "the right to mount a small file system (root)")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], timeout=30, check=True)


def resize(folder: Path, *, size_bytes: int) -> None:
    """Give the file system on `folder` another size, while it is in use."""
    subprocess.run(["mount", "-o", f"remount,size={size_bytes}", str(folder)], timeout=30, check=True)
