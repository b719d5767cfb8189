"""Spans for the messages that handlers work on, where a tracing library is installed and configured."""

import importlib
from collections.abc import Sequence
from typing import Protocol, cast

from veilmq.consumer.handlers import Handler
from veilmq.consumer.installed import is_installed
from veilmq.consumer.lease_table import Asked
from veilmq.consumer.leases import Lease, LeaseState
from veilmq.consumer.pools import Pool
from veilmq.consumer.verdicts import Verdict


class Tracing(Protocol):
    """Is told what happens to messages in work; threads may share it."""

    def around(self, pool: Pool, handler: Handler) -> Pool:
        """Return a pool that runs ``handler`` in ``pool``, with a span for each message."""

    def renewed(self, asked: Sequence[Asked], verdicts: Sequence[Verdict]) -> None:
        """Take note of renewals, in the renewer's thread."""

    def changed(self, lease: Lease, state: LeaseState) -> None:
        """Take note that ``lease`` is in ``state``, in whichever thread noticed."""


def tracing() -> Tracing | None:
    """Return what traces, ``None`` where nothing is installed, or nothing is configured to take spans."""
    if not is_installed("opentelemetry.trace"):
        return None
    return cast(Tracing | None, importlib.import_module("veilmq.consumer.otel_tracing").configured())
