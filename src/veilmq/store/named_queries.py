"""Named queries in SQL files: each query follows a line ``-- name: the_name``."""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (.+)$", re.MULTILINE)


def load(package: str, file: str) -> dict[str, str]:
    """Return the queries of ``file`` in ``package`` by name, comments and layout included."""
    _, *parts = _NAME.split(files(package).joinpath(file).read_text(encoding="utf-8"))
    return {name: text.strip().rstrip(";") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def schema(package: str, **words: str) -> str:
    """Return the DDL of a dialect: the shared tables, formatted with its ``words``, and its own."""
    shared_ddl = files("veilmq.store").joinpath("schema.sql").read_text(encoding="utf-8")
    return shared_ddl.format(**words) + files(package).joinpath("schema.sql").read_text(encoding="utf-8")


def shared() -> dict[str, str]:
    """Return the queries of both dialects by name; tables have no schema, parameters are ``$1``, ``$2``, …."""
    found: dict[str, str] = {}
    for entry in files("veilmq.store").joinpath("queries").iterdir():
        queries = load("veilmq.store", f"queries/{entry.name}")
        assert not found.keys() & queries.keys(), f"{entry.name}: a name has two queries"
        found |= queries
    return found
