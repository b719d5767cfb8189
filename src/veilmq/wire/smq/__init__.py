"""Alibaba Cloud SMQ (formerly MNS), API version 2015-06-06: one table of routes, and XML.

``read_request`` takes a request apart, ``decode`` makes a ``Plan`` of it by the table ``ROUTES``, and the call makes
the reply of the engine's result. An error of any kind is a ``SmqError`` before it is bytes.
"""

from veilmq.wire.smq.errors import ACCESS_DENIED, SmqError
from veilmq.wire.smq.request import VERSION_HEADER, SmqRequest, is_smq, read_request
from veilmq.wire.smq.routes import (
    ROUTES,
    Route,
    SmqCall,
    decode,
    encode_error,
    encode_failure,
    encode_refusal,
    route_of,
)

__all__ = [
    "ACCESS_DENIED",
    "ROUTES",
    "VERSION_HEADER",
    "Route",
    "SmqCall",
    "SmqError",
    "SmqRequest",
    "decode",
    "encode_error",
    "encode_failure",
    "encode_refusal",
    "is_smq",
    "read_request",
    "route_of",
]
