"""The Java that Spark uses, and its version."""

import os
import re
import shutil
import subprocess
from pathlib import Path

VERSION_MIN = 17
TIMEOUT_S = 20

MISSING = (
    f"Spark needs Java {VERSION_MIN} or newer: install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@21; elsewhere: https://adoptium.net), or set JAVA_HOME"
)

_VERSION = re.compile(r'version "(\d+)')


def java_version() -> int | None:
    """Return the major version of the Java of ``JAVA_HOME``, else of the path; ``None`` if there is none."""
    java = _java()
    if java is None:
        return None
    try:
        output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):  # without Java, macOS has a stub `java` that fails
        return None
    found = _VERSION.search(output)
    return int(found[1]) if found else None


def has_java() -> bool:
    """Return whether Spark can run; ``MISSING`` is the error message if not."""
    return (java_version() or 0) >= VERSION_MIN


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")
