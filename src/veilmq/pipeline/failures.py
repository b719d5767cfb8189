"""How a job ends badly: with one sentence that says what to do.

Spark's own messages hold the tracebacks of every process that had a part in it: ``reason_of`` finds the sentence.
"""

import re

_RAISED = re.compile(r"(?:\w+\.)*([A-Z]\w*): (\S.*)")
_PLAN = "=== Streaming Query ==="  # from there on Spark describes the query


class PipelineFailed(Exception):
    """The job was right and could not be done."""


def reason_of(error: BaseException | str) -> str:
    """Return the last thing that was raised, as tracebacks end: its type, unless that is ours, and what it says."""
    lines = str(error).partition(_PLAN)[0].splitlines()
    raised = [(line, found) for line in lines if (found := _RAISED.match(line))]
    if not raised:
        return next((line.strip() for line in lines if line.strip()), type(error).__name__)
    line, found = raised[-1]
    return found[2] if line.startswith("veilmq.") else f"{found[1]}: {found[2]}"
