"""A source of claims that this process has opened, and the thread that keeps it.

Opening begins an epoch: whatever else used the source is fenced from then on. The thread renews lease and hold until it
is told to stop, the process ends, or the server says that the epoch is over; another refusal (of a proxy, while the
server restarts; of a policy that is being changed) may pass before the hold ends.
"""

import logging
import threading
from typing import Self

from veilmq.client.claims import Claims
from veilmq.client.errors import ClientError, Unreachable
from veilmq.core.claims import Acknowledged, Bound, ClaimState, ClaimView, SourceView
from veilmq.spark.patience import patiently
from veilmq.spark.source_options import SourceOptions

BEATS_PER_LEASE = 3
OVER = frozenset({"EpochFenced", "SourceNotFound", "QueueNotFound"})
"""What a heartbeat is refused with when nothing is left to keep."""

_log = logging.getLogger("veilmq.spark")


class HeldSource:
    """One epoch of one source. ``view`` is what the server said of it last."""

    def __init__(self, claims: Claims, view: SourceView, options: SourceOptions) -> None:
        """Take an open source; the thread starts with ``open``."""
        self.view = view
        self._claims = claims
        self._options = options
        self._stopped = threading.Event()

    @classmethod
    def open(cls, name: str, options: SourceOptions, *, hold_s: int) -> Self:
        """Open the source ``name`` and begin to keep it; raises ``ClientError`` and ``Unreachable``."""
        claims = connect(options)
        view = patiently(
            lambda: claims.open(
                source=name,
                consumer=options.consumer,
                takeover=options.takeover,
                hold_s=hold_s,
                lease_s=options.lease_s,
            ),
            options.patience_s,
        )
        held = cls(claims, view, options)
        threading.Thread(target=held._beat, name="veilmq-heartbeat", daemon=True).start()
        return held

    @property
    def name(self) -> str:
        """Return what the source is called."""
        return self.view.source

    def renew(self) -> SourceView:
        """Renew lease and hold, and return how the source stands."""
        self.view = patiently(self._renew, self._options.patience_s)
        return self.view

    def claim(self, number: int, messages_max: int, *, wait_s: int) -> Bound:
        """Bind claim ``number``, or return what it is bound to; waits up to ``wait_s`` for the first message."""
        return patiently(
            lambda: self._claims.claim(
                source=self.name,
                epoch=self.view.epoch,
                number=number,
                messages_max=messages_max,
                shard_messages=self._options.shard_messages,
                bytes_max=self._options.bytes_max,
                wait_s=wait_s,
            ),
            self._options.patience_s,
        )

    def acknowledge(self, number: int) -> Acknowledged:
        """Delete the messages of all claims up to ``number``."""
        return patiently(
            lambda: self._claims.acknowledge(source=self.name, epoch=self.view.epoch, number=number),
            self._options.patience_s,
        )

    def stop(self) -> None:
        """Let the source go: without heartbeats its hold begins to run."""
        self._stopped.set()

    def _renew(self) -> SourceView:
        return self._claims.heartbeat(source=self.name, epoch=self.view.epoch)

    def _beat(self) -> None:
        while not self._stopped.wait(self._options.lease_s / BEATS_PER_LEASE):
            try:
                self._renew()
            except (ClientError, Unreachable) as error:
                if isinstance(error, ClientError) and error.code in OVER:
                    _log.warning("The source %s is kept no longer: %s", self.name, error)
                    return
                _log.warning("A heartbeat of the source %s did not arrive: %s", self.name, error)


def connect(options: SourceOptions) -> Claims:
    """Return a client for the claims of the queue that ``options`` name."""
    at = options.connection
    return Claims(at.endpoint, at.queue, key=at.key)


def open_claims(view: SourceView) -> dict[int, ClaimView]:
    """Return the claims of ``view`` that can be read, by number."""
    return {claim.number: claim for claim in view.claims if claim.state is ClaimState.OPEN}


def warn_of_others(name: str, options: SourceOptions) -> None:
    """Log what a new stream has to know of the others of its queue: whom it stops, and whose claims nobody renews."""
    with connect(options) as claims:
        views = patiently(claims.sources, options.patience_s)
    for view in views:
        held = sum(claim.messages for claim in open_claims(view).values())
        if view.source != name and view.consumer == options.consumer != "" and view.alive and not held:
            who = f"The consumer {view.consumer} has another stream, {view.source}, which ends now"
            _log.warning("%s: give each query a consumer of its own.", who)
        elif view.source != name and held and not view.alive:
            how = "they come back when its hold ends; `veilmq claims close` gives them back at once"
            _log.warning("%d messages are claimed by the stream %s, which is silent: %s.", held, view.source, how)
