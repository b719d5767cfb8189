"""What keeps people out of a page, as axe finds it: contrast, names that are missing, order, roles."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from tests.conftest import need

AXE = Path(__file__).parent / "axe/node_modules/axe-core/axe.min.js"
GRAVE = {"serious", "critical"}
_IS_THERE = "() => 'axe' in window"
_RUN = "() => axe.run(document, {resultTypes: ['violations'], preload: false}).then(found => found.violations)"


def barriers(page: Page) -> list[str]:
    """Return the serious and critical findings in ``page`` as it stands, of all rules that axe has."""
    need(AXE.exists(), "axe-core (scripts/install-browser.sh)")
    if not page.evaluate(_IS_THERE):
        page.evaluate(AXE.read_text(encoding="utf-8"))  # by the debugger: the page's own policy lets no such script in
    found: list[dict[str, Any]] = page.evaluate(_RUN)
    return [f"{each['id']}: {_where(node)}" for each in found if each["impact"] in GRAVE for node in each["nodes"]]


def _where(node: dict[str, Any]) -> str:
    return f"{' '.join(map(str, node['target']))}: {node['failureSummary']}"
