"""The machine, Python and commit of a run."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.servers import CHECKOUT


def describe() -> dict[str, str | int]:
    """Return cores, processor, kernel, Python, commit (`+` for uncommitted changes) and date in UTC."""
    return {
        "cores": os.cpu_count() or 0,
        "processor": _processor(),
        "kernel": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _commit() -> str:
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head or 'unknown'}{'+' if head and _git('status', '--porcelain', '--untracked-files=no') else ''}"


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
