"""What pages are told by the server beside what they ask as their caller; ``server.console`` makes it."""

from collections.abc import Sequence
from dataclasses import dataclass

from veilmq.console.access import Keys, May
from veilmq.console.advice import Past
from veilmq.console.audit import AuditLog
from veilmq.console.health import TellHealth
from veilmq.console.live import Live
from veilmq.console.shown_settings import ShownSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Each is of one page, or few. ``keys`` is ``None`` where nobody is asked who he is."""

    audit: AuditLog
    health: TellHealth
    keys: Keys | None
    live: Live
    may: May
    past: Past
    settings: Sequence[ShownSetting]
