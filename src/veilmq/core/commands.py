"""What can be asked of an engine: one frozen struct per command, the same for every protocol.

A queue is named by ``"account/name"``. Commands carry no time: the engine stamps them. Ranges that belong to a
protocol are checked at the wire; an engine relies on ``core.limits``' widest values and on its own queues' settings.
A batch action of a protocol is one command with several entries, and each entry succeeds or fails alone.
"""

from collections.abc import Mapping

import msgspec

from veilmq.core import limits
from veilmq.core.settings import SettingValue


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The root of all commands."""


class CreateQueue(Command, frozen=True, kw_only=True):
    """Create ``queue``, or find it with the same supplied settings. Answers ``QueueView``; error ``QueueExists``."""

    queue: str
    settings: Mapping[str, SettingValue] = {}


class DeleteQueue(Command, frozen=True, kw_only=True):
    """Delete ``queue`` and all its messages, at a cost that does not depend on them. Answers ``None``."""

    queue: str


class PurgeQueue(Command, frozen=True, kw_only=True):
    """Delete all messages of ``queue``, at a cost that does not depend on them. Answers ``None``."""

    queue: str


class SetQueue(Command, frozen=True, kw_only=True):
    """Change the supplied settings of ``queue``; leases in flight keep their deadlines. Answers ``None``."""

    queue: str
    settings: Mapping[str, SettingValue]


class ShowQueue(Command, frozen=True, kw_only=True):
    """Tell the settings, and with ``counts`` the counters, of ``queue``. Answers ``QueueView``."""

    queue: str
    counts: bool = False


class ListQueues(Command, frozen=True, kw_only=True):
    """List queues of ``account`` whose names begin with ``prefix``, by name, after the name ``after``.

    Answers ``QueuePage`` with at most ``count`` names (without the account).
    """

    account: str
    prefix: str = ""
    after: str = ""
    count: int = limits.SQS_LIST_RESULTS.default


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message to be sent.

    ``properties`` is ``core.properties`` encoded, empty when there are none; ``size_bytes`` counts the body in UTF-8
    and the names, types and values of the user's attributes; ``delay_s`` is ``None`` for the queue's own delay.
    """

    body: str
    size_bytes: int
    properties: bytes = b""
    delay_s: int | None = None
    priority: int = limits.PRIORITY.default


class Send(Command, frozen=True, kw_only=True):
    """Store messages. Answers a list with a ``SentMessage`` or an error (``MessageTooLong``) for each."""

    queue: str
    messages: tuple[NewMessage, ...]


class Receive(Command, frozen=True, kw_only=True):
    """Take up to ``count`` visible messages and hide them for ``timeout_s`` (``None``: the queue's own).

    Answers ``Received``, at once and possibly empty: waiting is the caller's business, see ``ports.Engine.watch``.
    """

    queue: str
    count: int = 1
    timeout_s: int | None = None


class Delete(Command, frozen=True, kw_only=True):
    """Delete the messages that ``receipts`` name. Answers a ``ReceiptState`` or ``ReceiptInvalid`` for each.

    A live receipt deletes; an expired one of a message not received again deletes too unless ``only_live``; a
    superseded one and one of a message that is gone do nothing.
    """

    queue: str
    receipts: tuple[str, ...]
    only_live: bool = False


class VisibilityChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Hide the message of ``receipt`` for ``timeout_s`` from now on; 0 makes it visible at once."""

    receipt: str
    timeout_s: int


class ChangeVisibility(Command, frozen=True, kw_only=True):
    """Move deadlines. Answers a ``LeaseChange``, ``ReceiptInvalid`` or ``LeaseTooLong`` for each change.

    Which receipts act is as for ``Delete``. With ``renew_receipt`` (SMQ) each change issues a new receipt and
    supersedes the old one.
    """

    queue: str
    changes: tuple[VisibilityChange, ...]
    only_live: bool = False
    renew_receipt: bool = False
