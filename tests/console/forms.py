"""The forms of a page, as a browser without scripts would send them back."""

from html.parser import HTMLParser


class _Forms(HTMLParser):
    """Gathers the fields of each form, by its ``action``."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[str, dict[str, str]] = {}
        self._action = ""
        self._select = ""
        self._area = ""
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take a field."""
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._action = given.get("action", "")
            self.forms[self._action] = {}
        elif tag == "input" and "name" in given:
            self.forms[self._action][given["name"]] = given.get("value", "")
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option":
            fields = self.forms[self._action]
            if self._select not in fields or "selected" in given:
                fields[self._select] = given["value"]
        elif tag == "textarea":
            self._area, self._text = given["name"], []

    def handle_data(self, data: str) -> None:
        """Take a part of a long text."""
        if self._area:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        """Take a long text: the first line end in it is none of it, and those of HTTP go over the wire."""
        if tag == "textarea":
            text = "".join(self._text).removeprefix("\n").replace("\r\n", "\n")
            self.forms[self._action][self._area] = text.replace("\n", "\r\n")
            self._area = ""


def form_of(html: str, action: str) -> dict[str, str]:
    """Return the fields of the form of ``html`` that goes to ``action``, as they are filled in."""
    parser = _Forms()
    parser.feed(html)
    parser.close()
    return parser.forms[action]
