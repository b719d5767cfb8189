"""Checks of pages in a browser: accessibility, keyboard use, errors and requests to other hosts."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, Request, Response

from tests.conftest import need

AXE = Path(__file__).parent / "axe/node_modules/axe-core/axe.min.js"
GRAVE = {"serious", "critical"}
_IS_THERE = "() => 'axe' in window"
_RUN = "() => axe.run(document, {resultTypes: ['violations'], preload: false}).then(found => found.violations)"


def barriers(page: Page) -> list[str]:
    """Return the serious and critical violations in ``page`` of all rules of axe."""
    need(AXE.exists(), "axe-core (scripts/install-browser.sh)")
    if not page.evaluate(_IS_THERE):
        page.evaluate(AXE.read_text(encoding="utf-8"))  # through the debugger, as the page's policy forbids scripts
    found: list[dict[str, Any]] = page.evaluate(_RUN)
    return [f"{each['id']}: {_where(node)}" for each in found if each["impact"] in GRAVE for node in each["nodes"]]


def _where(node: dict[str, Any]) -> str:
    return f"{' '.join(map(str, node['target']))}: {node['failureSummary']}"


STEPS_MAX = 200
_IS_FOCUSED = "element => element === document.activeElement"
_LOOK = """target => {
    const focused = document.activeElement;
    const style = getComputedStyle(focused);
    const shows = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
    return [focused === target, shows ? null : focused.outerHTML.slice(0, 200)];
}"""


class Keyboard:
    """Use a page by keyboard. ``unseen`` has the elements without a visible focus."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.unseen: list[str] = []

    def go_to(self, target: Locator) -> None:
        if target.evaluate(_IS_FOCUSED):
            return
        if not self._step_to(target, "Tab", STEPS_MAX):
            raise AssertionError(f"Tab does not lead to {target}")

    def press(self, target: Locator, key: str = "Enter") -> None:
        self.go_to(target)
        self._page.keyboard.press(key)

    def choose(self, radio: Locator) -> None:
        """Tab to the group of ``radio`` and select it with the arrow keys."""
        group = self._page.locator(f"input[type=radio][name='{radio.get_attribute('name')}']")
        chosen = group.and_(self._page.locator(":checked"))
        self.go_to(chosen if chosen.count() else group.first)
        if not radio.is_checked() and not self._step_to(radio, "ArrowDown", group.count()):
            raise AssertionError(f"the arrows do not lead to {radio}")

    def write(self, target: Locator, text: str) -> None:
        self.go_to(target)
        self._page.keyboard.press("ControlOrMeta+A")
        self._page.keyboard.type(text)

    def _step_to(self, target: Locator, key: str, steps_max: int) -> bool:
        element = target.element_handle()
        for _ in range(steps_max):
            self._page.keyboard.press(key)
            is_there, unseen = self._page.evaluate(_LOOK, element)
            if unseen is not None:
                self.unseen.append(unseen)
            if is_there:
                return True
        return False


_REFUSED = "Failed to load resource: the server responded with a status of 4"
_FORMS = {"document", "fetch", "xhr", "eventsource"}


class Watch:
    """Collect the faults of a browser context.

    Faults are script errors, violations of the Content-Security-Policy, requests to hosts other than ``origin``,
    missing files of a page, and statuses of 500 or more. A status 4xx of a form or an address is not a fault.
    """

    def __init__(self, context: BrowserContext, *, origin: str) -> None:
        self.faults: list[str] = []
        self._host = urlsplit(origin).netloc
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.faults.append(f"uncaught: {error.error}"))
        context.on("request", self._on_request)
        context.on("response", self._on_response)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not message.text.startswith(_REFUSED):
            self.faults.append(f"console {message.type}: {message.text} ({message.location})")

    def _on_request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in {"about", "data", "blob"} and address.netloc != self._host:
            self.faults.append(f"request to another host: {request.url}")

    def _on_response(self, response: Response) -> None:
        kind = response.request.resource_type
        if response.status >= 500 or (response.status >= 400 and kind not in _FORMS):
            self.faults.append(f"{response.status} for {kind} {response.url}")
