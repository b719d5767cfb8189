"""Failures of a job: one sentence each, with the action to take.

Spark's messages contain the tracebacks of all processes involved; ``reason_of`` extracts the sentence.
"""

import re

_RAISED = re.compile(r"(?:\w+\.)*([A-Z]\w*): (\S.*)")
_PLAN = "=== Streaming Query ==="  # a description of the query follows


class PipelineFailed(Exception):
    """The job cannot be done; ``str()`` says why and what to do."""


def reason_of(error: BaseException | str) -> str:
    """Return the last exception of the tracebacks: its type, unless it is one of veilmq, and its message."""
    lines = str(error).partition(_PLAN)[0].splitlines()
    raised = [(line, found) for line in lines if (found := _RAISED.match(line))]
    if not raised:
        return next((line.strip() for line in lines if line.strip()), type(error).__name__)
    line, found = raised[-1]
    return found[2] if line.startswith("veilmq.") else f"{found[1]}: {found[2]}"
