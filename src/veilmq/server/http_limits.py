"""How much one HTTP client may ask for, how slowly, before it is refused. The defaults are ``core.limits``."""

from dataclasses import dataclass

from veilmq.core import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Sizes in bytes, durations in seconds on the event loop's clock.

    ``request_s_max`` holds for reading one whole request and for a client that does not take its replies;
    ``linger_s_max`` for a refused client to stop sending, so that it can read why it was refused.
    """

    head_bytes_max: int = limits.HTTP_HEAD_BYTES_MAX
    headers_max: int = limits.HTTP_HEADERS_MAX
    target_bytes_max: int = limits.HTTP_TARGET_BYTES_MAX
    body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX
    pipelined_max: int = limits.HTTP_PIPELINED_REQUESTS_MAX
    request_s_max: float = limits.HTTP_REQUEST_S_MAX
    idle_s_max: float = limits.HTTP_IDLE_S_MAX
    linger_s_max: float = 2.0
