"""One sentence out of what Spark says when it fails."""

import pytest

from veilmq.pipeline.session import reason_of

OURS = """[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: Traceback (most recent call last):
  File "sink.py", line 48, in streamWriter
    raise OptionWrong("x")
veilmq.spark.options.OptionWrong: option colour: there is none of that name
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: a query [id = 1]
Current State: ACTIVE
"""
THEIRS = OURS.replace("veilmq.spark.options.OptionWrong: option colour: there is none", "ValueError: no integer")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param(OURS, "option colour: there is none of that name", id="ours"),
        pytest.param(THEIRS, "ValueError: no integer of that name", id="theirs"),
        pytest.param(
            "\n[TABLE_NOT_FOUND] There is no table x.\n\nPlan", "[TABLE_NOT_FOUND] There is no table x.", id="spark"
        ),
        pytest.param("", "RuntimeError", id="nothing"),
    ],
)
def test_the_reason_is_what_was_raised_last(said: str, reason: str) -> None:
    """Without the tracebacks around it, and without the description of the query behind it."""
    assert reason_of(RuntimeError(said)) == reason
