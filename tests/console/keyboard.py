"""Uses a page without a mouse: tabs to what has a role and a name, and sees that the focus shows."""

from playwright.sync_api import Locator, Page

STEPS_MAX = 200
_IS_FOCUSED = "element => element === document.activeElement"
_SHOWS = """() => {
    const style = getComputedStyle(document.activeElement);
    return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
}"""
_WHAT = "() => document.activeElement.outerHTML.slice(0, 200)"


class Keyboard:
    """The keys of one page."""

    def __init__(self, page: Page) -> None:
        """Nothing is pressed yet."""
        self._page = page
        self.unseen: list[str] = []

    def go_to(self, target: Locator) -> None:
        """Press Tab until ``target`` has the focus; fails when it never has."""
        for _ in range(STEPS_MAX):
            if target.evaluate(_IS_FOCUSED):
                return
            self._page.keyboard.press("Tab")
            self._look()
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
        for _ in range(group.count()):
            if radio.is_checked():
                return
            self._page.keyboard.press("ArrowDown")
            self._look()
        raise AssertionError(f"the arrows do not lead to {radio}")

    def write(self, target: Locator, text: str) -> None:
        """Go to the field ``target`` and write ``text`` in the place of what stands there."""
        self.go_to(target)
        self._page.keyboard.press("ControlOrMeta+A")
        self._page.keyboard.type(text)

    def _look(self) -> None:
        """Remember what has the focus and does not show it."""
        if not self._page.evaluate(_SHOWS):
            self.unseen.append(self._page.evaluate(_WHAT))
