"""Uses a page without a mouse: tabs to what has a role and a name, and sees that the focus shows it."""

from playwright.sync_api import Locator, Page

STEPS_MAX = 200
_IS_FOCUSED = "element => element === document.activeElement"
_LOOK = """target => {
    const focused = document.activeElement;
    const style = getComputedStyle(focused);
    const shows = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
    return [focused === target, shows ? null : focused.outerHTML.slice(0, 200)];
}"""


class Keyboard:
    """The keys of one page. ``unseen`` has what had the focus and did not show it."""

    def __init__(self, page: Page) -> None:
        """Nothing is pressed yet."""
        self._page = page
        self.unseen: list[str] = []

    def go_to(self, target: Locator) -> None:
        """Press Tab until ``target`` has the focus; fails when it never has."""
        if target.evaluate(_IS_FOCUSED):
            return
        if not self._step_to(target, "Tab", STEPS_MAX):
            raise AssertionError(f"Tab does not lead to {target}")

    def press(self, target: Locator, key: str = "Enter") -> None:
        """Go to ``target`` and press ``key``."""
        self.go_to(target)
        self._page.keyboard.press(key)

    def choose(self, radio: Locator) -> None:
        """Go to the group of ``radio``, and with the arrows to it."""
        group = self._page.locator(f"input[type=radio][name='{radio.get_attribute('name')}']")
        chosen = group.and_(self._page.locator(":checked"))
        self.go_to(chosen if chosen.count() else group.first)
        if not radio.is_checked() and not self._step_to(radio, "ArrowDown", group.count()):
            raise AssertionError(f"the arrows do not lead to {radio}")

    def write(self, target: Locator, text: str) -> None:
        """Go to the field ``target`` and write ``text`` in the place of what stands there."""
        self.go_to(target)
        self._page.keyboard.press("ControlOrMeta+A")
        self._page.keyboard.type(text)

    def _step_to(self, target: Locator, key: str, steps_max: int) -> bool:
        """Press ``key`` until ``target`` has the focus; return whether it has."""
        element = target.element_handle()
        for _ in range(steps_max):
            self._page.keyboard.press(key)
            is_there, unseen = self._page.evaluate(_LOOK, element)
            if unseen is not None:
                self.unseen.append(unseen)
            if is_there:
                return True
        return False
