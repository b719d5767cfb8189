"""What the janitors of both dialects do alike, a slice at a time."""

from veilmq.core.limits import SECOND_MS
from veilmq.store.queue_commands import DELETED, PURGED
from veilmq.store.transaction import Transaction

_ROWS = 1_000


async def forget_cooldowns(tx: Transaction) -> None:
    """Delete cooldowns that are over."""
    now_ms = await tx.now()
    for kind, pause_s in ((PURGED, tx.options.purge_pause_s), (DELETED, tx.options.queue_name_pause_s)):
        await tx.run("forget_cooldowns", kind, now_ms - pause_s * SECOND_MS, _ROWS)
