"""The queries that both dialects share, by name: those of ``store/queries``."""

from importlib.resources import files

from veilmq.engines.named_sql import load


def shared() -> dict[str, str]:
    """Return the shared queries by name; tables have no schema, parameters are ``$1``, ``$2``, …."""
    found: dict[str, str] = {}
    for entry in files("veilmq.store").joinpath("queries").iterdir():
        for name, text in load("veilmq.store", f"queries/{entry.name}").items():
            assert name not in found, f"two queries are named {name}"
            found[name] = text
    return found
