"""Every statement of the data plane names its partition, so that a partition can live in any database."""

import re
from collections.abc import Iterator
from importlib.resources import files

import pytest

from veilmq.store.named_queries import load, schema, shared

PACKAGE = "veilmq.store.postgres"
FILES = [entry.name for entry in files(PACKAGE).iterdir() if entry.name.endswith(".sql")]
NO_QUERIES = {"doctor.sql", "schema.sql", "functions.sql"}
"""The doctor looks at whole databases, and the schema makes one."""
SCHEMA = schema(PACKAGE, id="", name="text", number="bigint", bytes="bytea", keyed="")
FUNCTIONS = files(PACKAGE).joinpath("functions.sql").read_text()
PARTITIONS = {"$1", "p_qp", "p_target", "p_part.qp", "v_part"}
OF_ALL = {
    "copies.sql deduplication_log": "a copy of a whole store, which nobody uses meanwhile",
    "copies.sql add_part": "a new partition, which has no number yet",
    "copies.sql fifo": "a copy of a whole store, which nobody uses meanwhile",
    "copies.sql is_used": "a copy of a whole store, which nobody uses meanwhile",
    "copies.sql standard": "a copy of a whole store, which nobody uses meanwhile",
    "events.sql retired_parts": "the janitor looks where there is something to do",
    "events.sql take": "the exporter takes the events of a whole database",
    "outbox.sql due": "a relay looks where there is something to do",
    "outbox.sql ended": "a relay looks where there is something to do",
    "outbox.sql note_ends": "a relay looks where there is something to do",
    "queues.sql find_queue": "finds the partition, by the name of its queue",
    "shared claims_due": "a node looks when sources have something to do",
    "shared due_source": "a node looks where sources have something to do",
    "shared insert_part": "a new partition, which has no number yet",
    "outbox.sql known_outbox": "finds the partition, by the queues that it is between",
    "shards.sql has_events": "an operator removes a database",
    "shards.sql is_waiting": "an operator removes a database",
    "sweeps.sql parts": "the janitor looks where there is something to do",
    "wakeups.sql awaited": "names the partitions of all that is waited for at a node",
    "wakeups.sql awaited_groups": "names the partitions of all that is waited for at a node",
}
"""What is asked of a whole database, and why; each is rare, or finds out which partition to name."""


def without_comments(text: str) -> str:
    """Return a statement without its comments."""
    return re.sub(r"--.*", "", text)


_MADE = re.compile(r"CREATE (?:UNLOGGED )?TABLE (?:mq\.)?(\w+) \(\s*qp\b")
DATA = "|".join(sorted({*_MADE.findall(SCHEMA), "expired_receipt", "message"}))
"""The tables of the data plane: those whose first column is the partition, and the view of two of them."""

_WITHOUT_SCHEMA = re.compile(rf"\b(FROM|JOIN|USING|UPDATE|INTO)\s+(?=(?:{DATA})\b)")
_TABLE = re.compile(rf"\b(?:FROM|JOIN|USING|UPDATE|DELETE FROM|,)\s+mq\.(?:{DATA})\b")
_INSERT = re.compile(rf"\bINSERT INTO mq\.(?:{DATA})(?: AS \w+)? \(\s*(\w+)")
_INSERT_WHOLE = re.compile(rf"\bINSERT INTO mq\.(?:{DATA})(?: AS \w+)?\s+SELECT\b")
_GIVEN_WHOLE = re.compile(r"'qp', \$1|v_\w+\.qp := p_qp|mq\.event_of\(|SELECT qp, seq,")
"""How whole rows get theirs: it is put in, or it is that of rows that were found by it."""
_CALL = re.compile(r"\bmq\.(?:fifo_\w+|fair_\w+|admit)\(\s*([^,)]+)")
_NAMED = re.compile(r"\bqp = (\$[12]\b|p_\w+|part\.qp|v_\w+|NEW\.qp)")
_FUNCTION = re.compile(r"CREATE OR REPLACE FUNCTION mq\.(\w+)\((.*?)\$\$(.*?)\$\$", re.DOTALL)


def findings(text: str) -> list[str]:
    """Return what is wrong with a statement, or with the body of a function."""
    found = []
    if len(_NAMED.findall(text)) < len(_TABLE.findall(text)):
        found.append("a table is looked at in all partitions")
    if "part.qp" in _NAMED.findall(text) and not re.search(r"\bpart\.qp = (\$1|p_qp)\b", text):
        found.append("the partition is not named itself")
    if _INSERT_WHOLE.search(text) and not _GIVEN_WHOLE.search(text):
        found.append("whole rows bring a partition of their own")
    found += [f"rows begin with {column}" for column in _INSERT.findall(text) if column != "qp"]
    found += [f"a call begins with {term}" for term in _CALL.findall(text) if term not in PARTITIONS]
    return found


def touches_data(text: str) -> bool:
    """Tell whether a statement is one of the data plane."""
    return any(pattern.search(text) for pattern in (_TABLE, _INSERT, _INSERT_WHOLE, _CALL))


def queries() -> Iterator[tuple[str, str]]:
    """Yield name and text of each statement in each file of the folders, and of those that both dialects share."""
    for file in sorted(set(FILES) - NO_QUERIES):
        for name, text in load(PACKAGE, file).items():
            yield f"{file} {name}", without_comments(text)
    for name, text in shared().items():
        yield f"shared {name}", _WITHOUT_SCHEMA.sub(r"\1 mq.", without_comments(text))


def statements() -> Iterator[tuple[str, str]]:
    """Yield name and text of each statement of the data plane, and of each function that it calls."""
    for name, text in queries():
        if touches_data(text) and name not in OF_ALL:
            yield name, text
    for name, _, body in _FUNCTION.findall(without_comments(FUNCTIONS)):
        yield f"function {name}", body


def test_each_statement_names_one() -> None:
    """As its first term; what goes on to another queue names that one's as its second."""
    wrong = {name: found for name, text in statements() if (found := findings(text))}
    assert wrong == {}
    assert [name for name, text in statements() if not name.startswith("function ") and "$1" not in text] == [], (
        "no partition is given"
    )


def test_exceptions_are_needed() -> None:
    """Each of them is a statement that there is, and that names none; a file without statements is named."""
    found = {name for name, text in queries() if touches_data(text) and (findings(text) or "$1" not in text)}
    assert found == set(OF_ALL)
    assert {file for file in FILES if not load(PACKAGE, file)} == NO_QUERIES


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM mq.msg WHERE seq = $1",
        "DELETE FROM mq.msg USING mq.accepted WHERE msg.qp = $1",
        "UPDATE mq.fifo_group SET head = 1",
        "INSERT INTO mq.msg (seq, qp) VALUES ($1, $2)",
        "INSERT INTO mq.msg SELECT * FROM rows",
        "SELECT mq.fifo_remove($2, $1)",
        "SELECT * FROM mq.part JOIN mq.msg ON msg.qp = part.qp WHERE part.queue_id = $1",
    ],
)
def test_what_does_not_is_found(text: str) -> None:
    """Each by what it does."""
    assert findings(text)
