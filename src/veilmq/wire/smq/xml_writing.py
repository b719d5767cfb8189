"""The XML of replies: elements with text, written as the SDKs read them.

The namespace stands on the root alone, without a slash at its end; there are neither prefixes nor comments, and what is
optional and absent is left out, not empty (reference, sections 0 and 2.3). Each element ends a line, as the service
writes them: the SDK for PHP skips the node behind the end of some elements, which without white space is the next one.
What XML 1.0 cannot carry is replaced by U+FFFD: it can come from an error that repeats what a client sent, not from a
message, as no protocol takes one with such characters. A carriage return is written as a reference, because a parser
would read a line feed.
"""

from veilmq.wire.sqs.text import ILLEGAL

NAMESPACE = "http://mns.aliyuncs.com/doc/v1"
CONTENT_TYPE = b"Content-Type: text/xml;charset=utf-8\r\n"


def document(root: str, inner: str) -> bytes:
    """Return a whole document; ``inner`` is written XML."""
    line_end = "\n" if inner else ""
    return f'<?xml version="1.0"?>\n<{root} xmlns="{NAMESPACE}">{line_end}{inner}</{root}>'.encode()


def container(name: str, inner: str) -> str:
    """Return an element with ``inner``, which is written XML."""
    return f"<{name}>\n{inner}</{name}>\n"


def element(name: str, text: str) -> str:
    """Return an element with ``text``, which is any."""
    return f"<{name}>{escaped(text)}</{name}>\n"


def optional(name: str, text: str) -> str:
    """Return the same, and nothing where there is no text."""
    return element(name, text) if text else ""


def escaped(text: str) -> str:
    """Return ``text`` as it stands between tags."""
    if not (text.isascii() and text.isprintable()):
        text = ILLEGAL.sub("\ufffd", text)
        return _markup_escaped(text).replace("\r", "&#13;")
    return _markup_escaped(text)


def _markup_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
