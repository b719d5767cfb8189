"""The id of a request: 24 upper-case hexadecimal digits, as in ``x-mns-request-id`` (reference, section 2.2).

It looks like the real ones, which begin with the time, and needs no clock: it begins with four random bytes of the
process, and the rest counts on, together with the ids of all other protocols.
"""

from os import urandom

from veilmq.wire.sqs.request_id import ENDINGS

_BEGINNING = urandom(6).hex().upper()


def new() -> str:
    """Return the id of another request."""
    return f"{_BEGINNING}{next(ENDINGS):012X}"
