"""Cold features are written once: what they ask by name has one text for both dialects, but for a few that are listed.

Locks are no part of this: SQLite needs none, so they stand in the port. Nor is what a dialect does behind the port,
with messages that stand in other tables in each.
"""

import ast
from importlib.resources import files

from tests.tidy.tree import SRC, modules
from veilmq.store.named_queries import load, shared

ASKING = {"locked", "many", "row", "rows", "run", "value"}
"""The methods of a transaction that take the name of a query."""
TWO_TEXTS = {
    "event_state": "the last number is in the last batch of SQLite, whose row every batch of commands would write",
    "insert_publication": "stages are an array on PostgreSQL",
    "put_publication": "stages are an array on PostgreSQL",
    "queue_sources": "SQLite finds them by an index of a generated column",
}
SHARE_MIN = 0.6
DIALECTS = ("veilmq.store.sqlite", "veilmq.store.postgres")


def asked() -> set[str]:
    """Return the names that cold features ask for."""
    return {
        str(call.args[0].value)
        for source in modules(under=SRC / "veilmq" / "store")
        if source.path.count("/") == 3  # without the dialects
        for call in ast.walk(source.tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ASKING
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }


def of_dialect(package: str) -> set[str]:
    """Return the names of all queries that a dialect has a text of its own for."""
    entries = [entry.name for entry in files(package).iterdir() if entry.name.endswith(".sql")]
    return {name for entry in entries for name in load(package, entry)}


def test_cold_features_ask_with_one_text() -> None:
    """Those with two are listed, with the reason; each of them is needed."""
    one, two = set(shared()), asked() - set(shared())
    assert two == set(TWO_TEXTS)
    assert len(one) >= SHARE_MIN * len(one | two), f"{len(one)} have one text, {len(two)} have two"


def test_no_dialect_has_a_text_beside_the_shared_one() -> None:
    """It would be used in place of it, or by nothing."""
    assert {package: of_dialect(package) & set(shared()) for package in DIALECTS} == {each: set() for each in DIALECTS}
