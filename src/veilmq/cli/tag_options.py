"""Tags as arguments: ``KEY=VALUE``."""

from veilmq.cli.failures import UsageError


def read_tag(text: str) -> tuple[str, str]:
    """Return the key and the value of a tag; raises ``UsageError`` for what is none."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"A tag must look like KEY=VALUE, not {text!r}.")
    return key, value
