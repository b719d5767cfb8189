"""Find Chromium or a browser based on it; as a program, exit with 1 if there is none.

``CHROMIUM`` selects another one. scripts/install-browser.sh runs this file, so it imports only the standard library.
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
