"""A browser without scripts, for tests of single pages: it keeps cookies, follows redirects and sends forms back.

What only a real browser can show (scripts, layout, policies) is in the tests that use one.
"""

import re
from html import unescape
from http.cookies import SimpleCookie
from typing import NamedTuple, Self
from urllib.parse import urlencode

import urllib3

from veilmq.testing import RunningServer

_INPUT = re.compile(r'<input type="hidden" name="csrf" value="([^"]*)">')
_REDIRECTS_MAX = 5


class Seen(NamedTuple):
    """A page: ``headers`` by lower-case name, ``html`` as it came, ``path`` where redirects ended."""

    status: int
    headers: dict[str, str]
    html: str
    path: str

    @property
    def text(self) -> str:
        """Return what a person reads, on one line."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.html)).split())


class Visitor:
    """Someone at the console of ``server``; ``key`` is the id and the secret with which to sign in."""

    def __init__(self, server: RunningServer | str, *, key: tuple[str, str] | None = None) -> None:
        """Sign in if there is a ``key``."""
        endpoint = server if isinstance(server, str) else server.admin_endpoint
        self._endpoint = endpoint
        self._http = urllib3.PoolManager(cert_reqs="CERT_NONE")
        self.cookies: dict[str, str] = {}
        if key is not None:
            signed_in = self.post("/console/login", key_id=key[0], secret=key[1], next="")
            assert signed_in.status == 200, signed_in.text

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *problem: object) -> None:
        """Let go of the connections."""
        self._http.clear()

    def get(self, path: str, **headers: str) -> Seen:
        """Look at a page."""
        return self._follow("GET", path, None, headers)

    def post(self, path: str, *, at: str | None = None, headers: dict[str, str] | None = None, **fields: str) -> Seen:
        """Fill in the form of the page ``at`` (that of ``path`` itself without it) and send it to ``path``."""
        form = self.get(path if at is None else at)
        found = _INPUT.search(form.html)
        assert found is not None, f"no form at {form.path}: {form.text}"
        return self._follow("POST", path, {"csrf": unescape(found[1]), **fields}, headers or {})

    def send(self, path: str, fields: dict[str, str], **headers: str) -> Seen:
        """Send fields to ``path`` as they are, without a token of their own."""
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
        told = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie, **headers}
        reply = self._http.request(method, self._endpoint + path, body=body, headers=told, retries=False)
        for line in reply.headers.getlist("set-cookie"):
            self._keep(line)
        heard = {name.lower(): value for name, value in reply.headers.items()}
        return Seen(reply.status, heard, reply.data.decode(), path)

    def _keep(self, line: str) -> None:
        for name, morsel in SimpleCookie(line).items():
            if morsel["max-age"] == "0":
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = morsel.value
