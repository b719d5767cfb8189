"""Receipts: proof that its holder received a message, checked without a look-up table.

A receipt is ``version | queue | position | generation | epoch | visible-at | MAC``, packed and written in hex digits:
SMQ clients place receipts raw in a query string, and AWS's extended clients, which put the place of a body before a
receipt, split the two at ``-``. Receipts were written in the alphabet ``[A-Za-z0-9_-]`` before; those are still read.
The MAC (keyed BLAKE2s, 10 bytes) is made with a key that the store keeps, so receipts issued before a crash still work;
an older key verifies while it is kept.

``queue`` is the number of the queue's incarnation, never given twice: a receipt is useless on a re-created queue.
``generation`` (random, fresh at each receive) and ``epoch`` (+1 at each receive and each SMQ change) fence it.
"""

import re
from binascii import a2b_base64, a2b_hex
from collections.abc import Sequence
from hashlib import blake2s
from hmac import compare_digest
from struct import Struct
from typing import NamedTuple

from veilmq.core.errors import ReceiptInvalid

_VERSION = 1
_FIELDS = Struct(">BIQIIQ")
_FIELDS_BYTES = _FIELDS.size
_MAC_BYTES = 10
_SIGNED = Struct(f"{_FIELDS.format}{_MAC_BYTES}s")
_HEX_LENGTH = 2 * _SIGNED.size
_BASE64_LENGTH = _SIGNED.size // 3 * 4  # of the receipts before, which needed no padding
_FORM = re.compile("[A-Za-z0-9_-]+")
_FROM_URL = bytes.maketrans(b"-_+/=", b"+/???")

KEY_BYTES = 32
"""The length of a MAC key."""


class Receipt(NamedTuple):
    """What a receipt says, once its MAC was found genuine."""

    queue: int
    position: int
    generation: int
    epoch: int
    visible_at_ms: int


_receipt = tuple.__new__  # of a NamedTuple, without the Python frame that its constructor costs


def has_form(text: str) -> bool:
    """Tell whether ``text`` is as long as a receipt and of its alphabet, genuine or not."""
    return len(text) in (_HEX_LENGTH, _BASE64_LENGTH) and _FORM.fullmatch(text) is not None


class ReceiptBook:
    """Issues and reads receipts with ``keys``: the first one signs, all of them verify (rotation keeps two)."""

    __slots__ = ("_macs",)

    def __init__(self, *, keys: Sequence[bytes]) -> None:
        """Each key has ``KEY_BYTES`` bytes."""
        # A copy of a hash that has its key is made in half the time.
        self._macs = tuple(blake2s(key=key, digest_size=_MAC_BYTES) for key in keys)

    def issue(self, queue: int, position: int, generation: int, epoch: int, visible_at_ms: int) -> str:
        """Return the receipt's text."""
        fields = _FIELDS.pack(_VERSION, queue, position, generation, epoch, visible_at_ms)
        mac = self._macs[0].copy()
        mac.update(fields)
        return (fields + mac.digest()).hex()

    def read(self, text: str) -> Receipt:
        """Return what ``text`` says; raises ``ReceiptInvalid`` unless it was issued with one of our keys."""
        try:
            if len(text) == _HEX_LENGTH:
                token = a2b_hex(text)
                if token.hex() != text:  # a receipt has one spelling
                    raise ReceiptInvalid
            elif len(text) == _BASE64_LENGTH:
                token = a2b_base64(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
            else:
                raise ReceiptInvalid
        except ValueError:
            raise ReceiptInvalid from None
        version, queue, position, generation, epoch, visible_at_ms, said_mac = _SIGNED.unpack(token)
        for keyed in self._macs:
            mac = keyed.copy()
            mac.update(token[:_FIELDS_BYTES])
            if version == _VERSION and compare_digest(mac.digest(), said_mac):
                return _receipt(Receipt, (queue, position, generation, epoch, visible_at_ms))
        raise ReceiptInvalid
