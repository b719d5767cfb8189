"""veilmq: a message queue server that speaks Amazon SQS and Alibaba Cloud SMQ.

The parts and the one way in which they import each other are in ARCHITECTURE.md; `core` holds the rules
and is the place to start reading.
"""

__version__: str


def __getattr__(name: str) -> str:
    """Look up the version on first use (PEP 562): Spark's workers import this package for each batch."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("veilmq")
    except PackageNotFoundError:  # a source tree on the path that is not installed
        return "0+not.installed"
