"""veilmq's own HTTP API, version 1: typed JSON, and Arrow for many messages at once.

``ROUTES`` is the table of what can be asked, ``decode`` turns a request into a ``Call``; see ``docs/protocols``.
"""

from veilmq.wire.v1.codec import decode, encode_error, encode_failure
from veilmq.wire.v1.request import ApiRequest
from veilmq.wire.v1.routes import ROUTES, Route

__all__ = ["ROUTES", "ApiRequest", "Route", "decode", "encode_error", "encode_failure"]
