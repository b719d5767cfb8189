"""An HTTP client for tests of single pages: it keeps cookies, follows redirects and submits forms, without scripts."""

import re
from html import unescape
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from typing import NamedTuple, Self
from urllib.parse import urlencode

import urllib3

from tests.server.keys import SECRETS
from veilmq.testing import RunningServer

_INPUT = re.compile(r'<input type="hidden" name="csrf" value="([^"]*)">')
_REDIRECTS_MAX = 5


class Seen(NamedTuple):
    """A page: ``headers`` have names in lower case, ``path`` is the address after redirects."""

    status: int
    headers: dict[str, str]
    html: str
    path: str

    @property
    def text(self) -> str:
        """The visible text, on one line."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", re.sub("</?bdi>", "", self.html))).split())


class Visitor:
    """A client of the console of ``server``; it signs in with the ``key`` of the credentials file, if there is one."""

    def __init__(self, server: RunningServer | str, *, key: str | None = None) -> None:
        endpoint = server if isinstance(server, str) else server.admin_endpoint
        self._endpoint = endpoint
        self._http = urllib3.PoolManager(cert_reqs="CERT_NONE")
        self.cookies: dict[str, str] = {}
        if key is not None:
            signed_in = self.post("/console/login", key_id=key, secret=SECRETS[key], next="")
            assert signed_in.status == 200, signed_in.text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._http.clear()

    def get(self, path: str, **headers: str) -> Seen:
        return self._follow("GET", path, None, headers)

    def post(self, path: str, *, at: str = "", **fields: str) -> Seen:
        """Fill in the form of the page ``at`` (by default ``path``) and submit it to ``path``."""
        form = self.get(at or path)
        found = _INPUT.search(form.html)
        assert found is not None, f"no form at {form.path}: {form.text}"
        return self._follow("POST", path, {"csrf": unescape(found[1]), **fields}, {})

    def send(self, path: str, fields: dict[str, str], **headers: str) -> Seen:
        """Submit fields to ``path`` without adding a CSRF token."""
        return self._follow("POST", path, fields, headers)

    def _follow(self, method: str, path: str, fields: dict[str, str] | None, headers: dict[str, str]) -> Seen:
        for _ in range(_REDIRECTS_MAX):
            seen = self._once(method, path, fields, headers)
            if seen.status != 303:
                return seen
            method, path, fields = "GET", seen.headers["location"], None
        raise AssertionError(f"redirects without end at {path}")

    def _once(self, method: str, path: str, fields: dict[str, str] | None, headers: dict[str, str]) -> Seen:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        body = None if fields is None else urlencode(fields)
        sent = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie, **headers}
        reply = self._http.request(method, self._endpoint + path, body=body, headers=sent, retries=False)
        for line in reply.headers.getlist("set-cookie"):
            self._keep(line)
        received = {name.lower(): value for name, value in reply.headers.items()}
        return Seen(reply.status, received, reply.data.decode(), path)

    def _keep(self, line: str) -> None:
        for name, morsel in SimpleCookie(line).items():
            if morsel["max-age"] == "0":
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = morsel.value


class _Forms(HTMLParser):
    """Collect the fields of each form by its ``action``."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[str, dict[str, str]] = {}
        self._action = ""
        self._select = ""
        self._area = ""
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
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
        if self._area:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":  # HTML ignores a first line end; forms are sent with CRLF
            text = "".join(self._text).removeprefix("\n").replace("\r\n", "\n")
            self.forms[self._action][self._area] = text.replace("\n", "\r\n")
            self._area = ""


def form_of(html: str, action: str) -> dict[str, str]:
    """Return the fields of the form with this ``action``, with their values."""
    parser = _Forms()
    parser.feed(html)
    parser.close()
    return parser.forms[action]
