"""The page of SMQ names all that there is: operations, attributes, codes."""

import re

from tests.conftest import TESTS
from veilmq.wire.smq import ROUTES
from veilmq.wire.smq.errors import CODES
from veilmq.wire.smq.queues import ATTRIBUTES

ROOT = TESTS.parent
PAGE = (ROOT / "docs" / "protocols" / "smq.md").read_text(encoding="utf-8")
OTHERS = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("security.md", "topics.md")]
NEVER = {"QueueDeletedRecently"}
"""Codes of the reference that nothing is answered with."""


def section(name: str) -> str:
    """Return a section of the page."""
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def rows(name: str) -> list[str]:
    """Return the first cells of a section's table."""
    return re.findall(r"^\| `?(\w+)`? \|", section(name), re.MULTILINE)[1:]


def test_every_operation_on_queues_has_a_row() -> None:
    """Those of topics have a page of their own."""
    named = {route.name for route in ROUTES.values() if not route.path.startswith("topics")}
    assert set(rows("Operations")) == named


def test_every_attribute_has_a_row() -> None:
    """In the order in which they are shown."""
    assert rows("Attributes of queues") == list(ATTRIBUTES)


def test_every_code_is_on_a_page() -> None:
    """With its status; those of signatures and topics are on theirs."""
    table = dict(re.findall(r"^\| (\d+) \| (.*) \|$", section("Errors"), re.MULTILINE))
    for code in CODES:
        told = f"`{code.name}`" in table.get(str(code.status), "") or any(f"`{code.name}`" in page for page in OTHERS)
        assert told is (code.name not in NEVER), code.name


def test_each_choice_of_the_reference_is_told() -> None:
    """There are thirteen."""
    numbers = re.findall(r"^(\d+)\. \*\*", section("What was chosen"), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, 14))
