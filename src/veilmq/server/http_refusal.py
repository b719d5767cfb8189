"""A request that is refused before any protocol has seen it: a status and a sentence that says what to do."""

from collections.abc import Mapping
from typing import NamedTuple

_TEXT = b"text/plain; charset=utf-8"


class Refusal(NamedTuple):
    """``status`` is an HTTP status, ``text`` a sentence for a person, ``allow`` the methods there are, for 405.

    ``kind`` is the content type, where the text is no sentence.
    """

    status: int
    text: str
    allow: bytes = b"GET, POST"
    kind: bytes = _TEXT

    @property
    def headers(self) -> bytes:
        """Return the header lines of the reply."""
        return b"Content-Type: %b\r\n" % self.kind + self.advice

    @property
    def advice(self) -> bytes:
        """Return the header line that says what to do: the methods that there are, or when to send it again."""
        if self.status == 503:
            return b"Retry-After: 1\r\n"
        return b"Allow: %b\r\n" % self.allow if self.status == 405 else b""

    @property
    def body(self) -> bytes:
        """Return the body of the reply."""
        return self.text.encode() + b"\n" if self.kind is _TEXT else self.text.encode()


class Worded(NamedTuple):
    """A refusal as it is answered: whole header lines, and the body."""

    headers: bytes
    body: bytes


def as_text(refusal: Refusal, _heard: Mapping[bytes, bytes]) -> Worded:
    """Word a refusal for a person, whatever was heard of the request's headers."""
    return Worded(refusal.headers, refusal.body)


NO_HOST = Refusal(400, "An HTTP/1.1 request needs one Host header, which names the server.")
TUNNEL = Refusal(405, "This is no proxy; send requests to it, not through it.")
CODING = Refusal(501, "The only transfer coding that is understood is chunked; send the body as it is.")
OLD_CODING = Refusal(400, "HTTP/1.0 knows no transfer codings; send the body as it is, or use HTTP/1.1.")
EXPECTATION = Refusal(417, "The only expectation that can be met is 100-continue.")
TRUNCATED = Refusal(400, "The connection ended inside the request; send the whole of it.")


NO_ROOM = Refusal(
    503, "The server holds as many bytes of requests and answers as it may (http_bytes_max); send the request again."
)


def malformed(reason: object) -> Refusal:
    """Refuse what the parser could not read."""
    return Refusal(400, f"This is not a well-formed HTTP/1.1 request: {reason}.")


def repeated(name: bytes) -> Refusal:
    """Refuse a header that may be sent once only."""
    return Refusal(400, f"The header {name.decode('latin-1')} was sent more than once; send it once.")


def version(number: str) -> Refusal:
    """Refuse a version of HTTP."""
    return Refusal(505, f"HTTP/{number} is not spoken here; use HTTP/1.1.")


def many_headers(headers_max: int) -> Refusal:
    """Refuse a head with too many headers."""
    return Refusal(431, f"The request has more than {headers_max} headers; send fewer.")


def long_head(head_bytes_max: int) -> Refusal:
    """Refuse a head with too many bytes."""
    return Refusal(431, f"Request line and headers have more than {head_bytes_max} bytes together; send less.")


def long_framing(framing_bytes_max: int) -> Refusal:
    """Refuse a chunked body with too many bytes around its chunks."""
    return Refusal(431, f"Chunk extensions and trailers have more than {framing_bytes_max} bytes; send none.")


def long_target(target_bytes_max: int) -> Refusal:
    """Refuse a request line whose target is too long."""
    return Refusal(414, f"The request target has more than {target_bytes_max} bytes; put parameters in the body.")


def long_body(body_bytes_max: int) -> Refusal:
    """Refuse a body that is too long, announced or not."""
    return Refusal(413, f"The body has more than {body_bytes_max} bytes; send less in one request.")


def slow(request_s_max: float) -> Refusal:
    """Refuse a request that did not arrive in time."""
    return Refusal(408, f"The request did not arrive within {request_s_max:g} seconds; send it again at once.")
