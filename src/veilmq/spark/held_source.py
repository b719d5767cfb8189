"""A source of claims that this process has opened, and its heartbeat thread.

Opening a source starts an epoch and fences all earlier users of the source. The thread renews lease and hold until
``stop``, the end of the process, or an error that ends the epoch. Other errors can be temporary (a proxy while the
server restarts, a policy during a change), so the thread continues.
"""

import logging
import threading
from typing import Self

from veilmq.client.api import Claims
from veilmq.client.messages import ClientError, Unreachable
from veilmq.core.claims import Acknowledged, Bound, ClaimState, ClaimView, SourceView
from veilmq.spark.patience import retrying
from veilmq.spark.source_options import SourceOptions

BEATS_PER_LEASE = 3
OVER = frozenset({"EpochFenced", "SourceNotFound", "QueueNotFound"})
"""Error codes of a heartbeat after which the source cannot be renewed."""

_log = logging.getLogger("veilmq.spark")


class HeldSource:
    """One epoch of one source. ``view`` is its last state from the server."""

    def __init__(self, claims: Claims, view: SourceView, options: SourceOptions) -> None:
        """Use an open source; only ``open`` starts the heartbeat thread."""
        self.view = view
        self._claims = claims
        self._options = options
        self._stopped = threading.Event()

    @classmethod
    def open(cls, name: str, options: SourceOptions, *, hold_s: int) -> Self:
        """Open the source ``name`` and start its heartbeat thread; raises ``ClientError`` and ``Unreachable``."""
        claims = connect(options)
        view = retrying(
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
        """Return the name of the source."""
        return self.view.source

    def renew(self) -> SourceView:
        """Renew lease and hold, and return the state of the source."""
        self.view = retrying(self._renew, self._options.patience_s)
        return self.view

    def claim(self, number: int, messages_max: int, *, wait_s: int) -> Bound:
        """Bind claim ``number``, or return its existing binding; waits up to ``wait_s`` for the first message."""
        return retrying(
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
        return retrying(
            lambda: self._claims.acknowledge(source=self.name, epoch=self.view.epoch, number=number),
            self._options.patience_s,
        )

    def stop(self) -> None:
        """Stop the heartbeats: the source's hold starts to run."""
        self._stopped.set()

    def _renew(self) -> SourceView:
        return self._claims.heartbeat(source=self.name, epoch=self.view.epoch)

    def _beat(self) -> None:
        while not self._stopped.wait(self._options.lease_s / BEATS_PER_LEASE):
            try:
                self._renew()
            except (ClientError, Unreachable) as error:
                if isinstance(error, ClientError) and error.code in OVER:
                    _log.warning("Heartbeats of the source %s end: %s", self.name, error)
                    return
                _log.warning("A heartbeat of the source %s failed: %s", self.name, error)


def connect(options: SourceOptions) -> Claims:
    """Return a client for the claims of the queue in ``options``."""
    connection = options.connection
    return Claims(connection.endpoint, connection.queue, key=connection.key)


def open_claims(view: SourceView) -> dict[int, ClaimView]:
    """Return the readable claims of ``view`` by number."""
    return {claim.number: claim for claim in view.claims if claim.state is ClaimState.OPEN}


def warn_of_others(name: str, options: SourceOptions) -> None:
    """Warn if a new stream ends another one of its consumer, or if claims of a dead stream hold messages."""
    with connect(options) as claims:
        views = retrying(claims.sources, options.patience_s)
    for view in views:
        held = sum(claim.messages for claim in open_claims(view).values())
        if view.source != name and view.consumer == options.consumer != "" and view.alive and not held:
            other = f"The consumer {view.consumer} has another stream, {view.source}, which ends now"
            _log.warning("%s: give each query its own consumer.", other)
        elif view.source != name and held and not view.alive:
            action = "they return to the queue when its hold ends, or at once with `veilmq claims close`"
            _log.warning("The dead stream %s has %d claimed messages: %s.", view.source, held, action)
