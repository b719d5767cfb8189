"""Every statement of the data plane names its partition, so that a partition can live on any server, or in Citus."""

import re
from collections.abc import Iterator

import pytest

from veilmq.engines.named_sql import load
from veilmq.engines.postgres.migrate import all_scripts

DATA = "msg|fifo_msg|fifo_group|fair_turn|accepted|attempt|part|in_flight|throttle"
PARTITIONS = {"$1", "p_qp", "p_target", "p_part.qp", "v_part"}
OF_ALL = {"parts", "queues", "now"}
"""What is asked of a whole store: the janitor looks where there is something to do."""

_TABLE = re.compile(rf"\b(?:FROM|JOIN|USING|UPDATE|DELETE FROM|,)\s+mq\.(?:{DATA})\b")
_INSERT = re.compile(rf"\bINSERT INTO mq\.(?:{DATA})(?: AS \w+)? \(\s*(\w+)")
_CALL = re.compile(r"\bmq\.(?:fifo_\w+|fair_\w+|admit)\(\s*([^,)]+)")
_NAMED = re.compile(r"\bqp = (\$[12]\b|p_\w+|part\.qp|v_\w+|NEW\.qp)")
_FUNCTION = re.compile(r"CREATE FUNCTION mq\.(\w+)\((.*?)\$\$(.*?)\$\$", re.DOTALL)


def without_comments(text: str) -> str:
    """Return a statement without its comments."""
    return re.sub(r"--.*", "", text)


def findings(text: str) -> list[str]:
    """Return what is wrong with a statement, or with the body of a function."""
    found = []
    if len(_NAMED.findall(text)) < len(_TABLE.findall(text)):
        found.append("a table is looked at in all partitions")
    if "part.qp" in _NAMED.findall(text) and not re.search(r"\bpart\.qp = (\$1|p_qp)\b", text):
        found.append("the partition is not named itself")
    found += [f"rows begin with {column}" for column in _INSERT.findall(text) if column != "qp"]
    found += [f"a call begins with {term}" for term in _CALL.findall(text) if term not in PARTITIONS]
    return found


def statements() -> Iterator[tuple[str, str]]:
    """Yield name and text of each statement of the data plane, and of each function that it calls."""
    for file in ("messages.sql", "fair.sql", "fifo.sql", "sweeps.sql"):
        for name, text in load("veilmq.engines.postgres", file).items():
            if name not in OF_ALL:
                yield f"{file} {name}", without_comments(text)
    for script in all_scripts():
        for name, _, body in _FUNCTION.findall(without_comments(script.text)):
            yield f"{script.number:03} {name}", body


@pytest.mark.parametrize(("name", "text"), [pytest.param(*each, id=each[0]) for each in statements()])
def test_each_statement_names_one(name: str, text: str) -> None:
    """As its first term; what goes on to another queue names that one's as its second."""
    assert findings(text) == []
    if ".sql " in name:
        assert "$1" in text, "no partition is given at all"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM mq.msg WHERE seq = $1",
        "DELETE FROM mq.msg USING mq.accepted WHERE msg.qp = $1",
        "UPDATE mq.fifo_group SET head = 1",
        "INSERT INTO mq.msg (seq, qp) VALUES ($1, $2)",
        "SELECT mq.fifo_sweep($2, $1)",
        "SELECT * FROM mq.part JOIN mq.msg ON msg.qp = part.qp WHERE part.queue_id = $1",
    ],
)
def test_what_does_not_is_found(text: str) -> None:
    """Each by what it does."""
    assert findings(text)
