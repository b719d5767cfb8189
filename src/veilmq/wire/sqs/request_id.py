"""The id of a request, with which its reply can be found again in a log.

It looks like a random UUID: the process's own beginning, and 48 bits counted on from a random number.
"""

from itertools import count
from random import getrandbits

from veilmq.core.ids import IdSource
from veilmq.wire.sqs.names import id_text

BEGINNING = id_text(IdSource().next())[:24]
"""What the ids of this process begin with."""

ENDINGS = count(getrandbits(40))
"""The numbers with which they end, in twelve hexadecimal digits; all codecs take theirs from here."""


def new() -> str:
    """Return the id of another request."""
    return f"{BEGINNING}{next(ENDINGS):012x}"
