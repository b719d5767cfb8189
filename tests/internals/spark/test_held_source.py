"""The heartbeat of a source: what it survives, and what ends it."""

import threading
from dataclasses import replace
from typing import Any, cast

import pytest

from veilmq.client.api import Claims
from veilmq.client.messages import ClientError, Unreachable
from veilmq.core.claims import SourceView
from veilmq.spark.held_source import HeldSource
from veilmq.spark.source_options import SourceOptions

PATIENCE_S = 60.0
VIEW = SourceView(
    source="s", consumer="", epoch=1, acknowledged=0, last=0, alive=True, lease_until_ms=0, hold_until_ms=0, claims=[]
)


class ScriptedClaims:
    """Refuses heartbeats with `errors`, one after the other; `well` is set by the first that is not refused."""

    def __init__(self, *errors: Exception) -> None:
        """Nobody has asked."""
        self.errors = list(errors)
        self.beats = 0
        self.well = threading.Event()

    def heartbeat(self, source: str, *, epoch: int) -> SourceView:
        """Refuse, or not."""
        self.beats += 1
        if self.errors:
            raise self.errors.pop(0)
        self.well.set()
        return VIEW


def held(claims: Any) -> HeldSource:
    """Return a source whose heart beats as fast as it can."""
    options = replace(SourceOptions.of({"queue": "q"}), lease_s=cast(int, 0.003))
    return HeldSource(cast(Claims, claims), VIEW, options)


def test_it_survives_what_may_pass() -> None:
    """Otherwise a batch that takes longer than the hold would lose its messages for a proxy's hiccup."""
    claims = ScriptedClaims(
        Unreachable("http://h", "no answer in time"),
        ClientError("UnexpectedReply", "a page of a proxy", 404),
        ClientError("AccessDenied", "the policy is being changed", 403),
        ClientError("InternalError", "a defect", 500),
    )
    source = held(claims)
    thread = threading.Thread(target=source._beat, daemon=True)
    thread.start()
    assert claims.well.wait(PATIENCE_S)
    source.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("code", ["EpochFenced", "SourceNotFound", "QueueNotFound"])
def test_it_ends_with_the_epoch(code: str, caplog: pytest.LogCaptureFixture) -> None:
    claims = ScriptedClaims(ClientError(code, "it is over", 409))
    held(claims)._beat()
    assert claims.beats == 1
    assert "end: it is over" in caplog.text
