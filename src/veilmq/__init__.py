"""veilmq: a message queue whose received messages become invisible, not gone.

The parts and the one way in which they import each other are in ARCHITECTURE.md; `core` holds the rules
and is the place to start reading.
"""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("veilmq")
except PackageNotFoundError:  # a source tree on the path that nobody installed
    __version__ = "0+not.installed"
