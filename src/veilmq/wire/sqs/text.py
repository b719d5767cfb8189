"""Which characters a message may have: those of XML 1.0 (SQS API Reference, SendMessage, ``MessageBody``).

Most bodies are ASCII without control characters, which two scans in C find out; only the others meet the regular
expression.
"""

import re

from veilmq.wire.sqs.errors import INVALID_MESSAGE_CONTENTS, Code, SqsError

ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""One character that XML 1.0 cannot carry."""

_ILLEGAL_ASCII = bytes(code for code in range(0x20) if chr(code) not in "\t\n\r")
_ALLOWED = "#x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF]"


def check_text(text: str, place: str, code: Code = INVALID_MESSAGE_CONTENTS) -> None:
    """Raise ``code`` when ``text`` holds a character that SQS refuses; ``place`` names where."""
    if text.isascii() and len(text.encode().translate(None, _ILLEGAL_ASCII)) == len(text):
        return
    illegal = ILLEGAL.search(text)
    if illegal is not None:
        raise SqsError(
            code,
            f"Invalid binary character '#x{ord(illegal[0]):X}' was found in {place}, "
            f"the set of allowed characters is {_ALLOWED}.",
        )
