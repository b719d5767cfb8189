"""Forwards from a client's side: received messages move on to other queues, each once.

``docs/forwarding.md`` has the whole story. A call whose answer was lost is made again; what it had moved is then
``ReceiptEnded`` with the field ``state`` saying ``gone``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from veilmq.client.api import QueueApi
from veilmq.client.errors import ClientError
from veilmq.wire.sqs.names import full_name
from veilmq.wire.v1.publications import ForwardedEntry


class _Entries(msgspec.Struct, frozen=True):
    entries: list[dict[str, Any]]


class Forwards(QueueApi):
    """The forwards of one intake queue."""

    noun = "queues"

    def forward(self, entries: Sequence[tuple[str, str]]) -> list[ForwardedEntry | ClientError]:
        """Move the message of each receipt to its target, a queue's name or URL; an item for each entry, in order.

        Up to ten; without any it asks whether the server can. Raises ``ClientError`` and ``Unreachable``.
        """
        return self._ask([{"receipt": receipt, "target": _name_of(target)} for receipt, target in entries])

    def dead_letter(self, receipt: str, target: str, reasons: Mapping[str, str]) -> ForwardedEntry | ClientError:
        """Move a message to ``target`` as a dead letter, with ``reasons`` as attributes; raises as ``forward`` does."""
        (item,) = self._ask([{"receipt": receipt, "target": _name_of(target), "reasons": dict(reasons)}])
        return item

    def _ask(self, wanted: Sequence[Mapping[str, Any]]) -> list[ForwardedEntry | ClientError]:
        reply = self.post("forward", {"entries": wanted}, _Entries)
        return [_item(entry) for entry in reply.entries]


def _name_of(target: str) -> str:
    """Return a queue as a forward names it: of a URL, namespace and name."""
    return full_name(target) if "://" in target else target


def _item(entry: dict[str, Any]) -> ForwardedEntry | ClientError:
    if "code" in entry:
        return ClientError(entry["code"], entry["message"], entry["status"], fields=entry)
    return msgspec.convert(entry, ForwardedEntry)
