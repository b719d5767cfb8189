"""veilmq: a message queue whose received messages become invisible, not gone.

The parts and the one way in which they import each other are in ARCHITECTURE.md; `core` holds the rules
and is the place to start reading.
"""

__version__: str


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: workers of Spark import this package for each batch (PEP 562)."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("veilmq")
    except PackageNotFoundError:  # a source tree on the path that nobody installed
        return "0+not.installed"
