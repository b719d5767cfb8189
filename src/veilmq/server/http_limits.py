"""How much one HTTP client may ask for, how slowly, before it is refused. The defaults are ``core.limits``."""

from dataclasses import dataclass

from veilmq.core import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Sizes in bytes, durations in seconds on the event loop's clock.

    ``request_s_max`` holds for reading one whole request and for a client that does not take its replies;
    ``body_wait_s_max`` for a body longer than ``large_body_bytes`` until there is room for it (a chunked one asks for
    ``body_step_bytes`` at a time); ``linger_s_max`` for a refused client to stop sending, so that it can read why it
    was refused.
    """

    head_bytes_max: int = limits.HTTP_HEAD_BYTES_MAX
    headers_max: int = limits.HTTP_HEADERS_MAX
    target_bytes_max: int = limits.HTTP_TARGET_BYTES_MAX
    body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX
    pipelined_max: int = limits.HTTP_PIPELINED_REQUESTS_MAX
    request_s_max: float = limits.HTTP_REQUEST_S_MAX
    idle_s_max: float = limits.HTTP_IDLE_S_MAX
    linger_s_max: float = 2.0
    large_body_bytes: int = limits.HTTP_LARGE_BODY_BYTES
    body_step_bytes: int = limits.HTTP_BODY_STEP_BYTES
    body_wait_s_max: float = limits.HTTP_BODY_WAIT_S_MAX
