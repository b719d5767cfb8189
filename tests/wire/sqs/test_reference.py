"""The reference page is what the tables say."""

from tests.tidy.tree import ROOT
from veilmq.wire.sqs import ACTIONS
from veilmq.wire.sqs.errors import CODES
from veilmq.wire.sqs.reference import render

PAGE = ROOT / "docs" / "protocols" / "sqs.md"


def test_the_page_is_up_to_date() -> None:
    """If not: python -m veilmq.wire.sqs.reference > docs/protocols/sqs.md."""
    assert PAGE.read_text(encoding="utf-8") == render()


def test_the_page_has_a_row_for_each_action_and_each_error() -> None:
    """And each action says what it does."""
    rows = {line.split(" | ")[0]: line.split(" | ") for line in render().splitlines() if line.startswith("| `")}
    for action in ACTIONS:
        assert rows[f"| `{action}`"][1].endswith("."), action
    for code in CODES:
        assert f"| `{code.name}`" in rows
