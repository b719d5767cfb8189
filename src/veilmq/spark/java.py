"""The Java that Spark runs on: which one it would take, and whether that is new enough."""

import os
import re
import shutil
import subprocess
from pathlib import Path

VERSION_MIN = 17
PATIENCE_S = 20

MISSING = (
    f"Spark needs Java {VERSION_MIN} or newer: install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@21; elsewhere: https://adoptium.net), or set JAVA_HOME to it"
)

_VERSION = re.compile(r'version "(\d+)')


def java_version() -> int | None:
    """Return the major version of the Java that Spark would run on, ``None`` where none runs.

    That is the one of ``JAVA_HOME`` where the variable is set, else the one on the path.
    """
    java = _java()
    if java is None:
        return None
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=PATIENCE_S, check=True).stderr
    except (OSError, subprocess.SubprocessError):  # macOS has a program of that name that only says what to install
        return None
    found = _VERSION.search(said)
    return int(found[1]) if found else None


def has_java() -> bool:
    """Tell whether Spark can run; where it cannot, ``MISSING`` says what to do."""
    return (java_version() or 0) >= VERSION_MIN


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")
