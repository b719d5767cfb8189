"""Stories are told on every store; what PostgreSQL does not have yet is named here."""

import pytest

OWED_ON_POSTGRES = {
    "fair queues": {
        "A quiet group's message comes before those that a noisy group has waiting",
        "A noisy group is quiet again when it sent nothing for five minutes",
    },
}
"""The stories that do not hold there yet, by what is missing."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is owed."""
    owed = [item for item in items if _is_owed(item)]
    items[:] = [item for item in items if item not in owed]
    config.hook.pytest_deselected(items=owed)


def _is_owed(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    if call is None or call.params.get("store") != "postgres":
        return False
    return any(call.params["told"].title in stories for stories in OWED_ON_POSTGRES.values())
