"""The secret keys of a store: made once, kept as long as its data."""

from os import urandom

from veilmq.core.receipts import KEY_BYTES
from veilmq.engines.embedded.journal import Journal

RECEIPT_KEY = "receipt_key"
TOKEN_KEY = "token_key"


def kept_key(journal: Journal, name: str) -> bytes:
    """Return the key ``name`` of the store, a new one where it has none yet."""
    key: bytes | None = journal.meta().get(name)
    if key is None:
        key = urandom(KEY_BYTES)
        journal.put_meta(name, key)
    return key
