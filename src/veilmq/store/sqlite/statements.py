"""The statements of the SQLite dialect by name: those that both dialects share, and its own."""

import re

from veilmq.store.named_queries import load, shared

_PLACE = re.compile(r"\$(\d+)")

SQL = {
    **{name: _PLACE.sub(r"?\1", text) for name, text in shared().items()},
    **load("veilmq.store.sqlite", "queries.sql"),
    **load("veilmq.store.sqlite", "copies.sql"),
}

BARE = {name: text.replace("m.body, m.properties", "NULL, NULL") for name, text in SQL.items()}
"""The same for a caller that needs no contents: of a long body the database reads all pages."""
