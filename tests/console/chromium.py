"""Where this machine has Chromium, or a browser made of it; run as a program, it says so or fails.

``CHROMIUM`` names another one. Nothing but the standard library is imported: scripts/install-browser.sh asks before
there are tests.
"""

import os
import shutil
import sys
from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


def chromium() -> str | None:
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    found = (shutil.which(name) for name in NAMES)
    return next((path for path in found if path), next((path for path in APPLICATIONS if Path(path).exists()), None))


if __name__ == "__main__":
    sys.exit(0 if chromium() else 1)
