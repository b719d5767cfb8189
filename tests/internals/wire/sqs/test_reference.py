"""The reference page is what the tables say."""

import runpy

from tests.clients.sqs_client import service_model
from tests.tidy.tree import ROOT
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import CODES

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "sqs_page.py"))
render, NEVER_RAISED = SCRIPT["render"], SCRIPT["NEVER_RAISED"]
PAGE = ROOT / "docs" / "protocols" / "sqs.md"


def test_the_page_is_up_to_date() -> None:
    """If not: python scripts/sqs_page.py > docs/protocols/sqs.md."""
    assert PAGE.read_text(encoding="utf-8") == render()


def test_the_page_has_a_row_for_each_action_and_each_error() -> None:
    """And each action says what it does."""
    rows = {line.split(" | ")[0]: line.split(" | ") for line in render().splitlines() if line.startswith("| `")}
    for action in ACTIONS:
        assert rows[f"| `{action}`"][1].endswith("."), action
    for code in CODES:
        assert f"| `{code.name}`" in rows


def test_every_error_of_the_model_is_raised_or_told_never_to_be() -> None:
    """What an AWS client may be prepared for, and never meets here, is a known difference."""
    operations = [service_model().operation_model(action) for action in ACTIONS]
    documented = {shape.name for operation in operations for shape in operation.error_shapes}
    assert documented - {code.name for code in CODES} == set(NEVER_RAISED)
    for name, reason in NEVER_RAISED.items():
        assert f"| `{name}` | {reason} |\n" in render().partition("## Differences from Amazon SQS")[2]
