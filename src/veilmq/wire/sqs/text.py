"""Which characters a message may have: those of XML 1.0 (SQS API Reference, SendMessage, ``MessageBody``).

Most bodies are printable ASCII, which two scans in C find out; only the others meet the regular expression.
"""

import re

from veilmq.wire.sqs.errors import INVALID_MESSAGE_CONTENTS, SqsError

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ALLOWED = "#x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF]"


def check_text(text: str, place: str) -> None:
    """Raise InvalidMessageContents when ``text`` holds a character that SQS refuses; ``place`` names it."""
    if text.isascii() and text.isprintable():
        return
    illegal = _ILLEGAL.search(text)
    if illegal is not None:
        raise SqsError(
            INVALID_MESSAGE_CONTENTS,
            f"Invalid binary character '#x{ord(illegal[0]):X}' was found in {place}, "
            f"the set of allowed characters is {_ALLOWED}.",
        )
