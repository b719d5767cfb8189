"""What a line of the log is about, as fields beside its text: for logs that machines read."""

from veilmq.consumer.leases import Lease


def about(lease: Lease, **more: object) -> dict[str, object]:
    """Return the fields of a line about the message of ``lease``, for ``extra``."""
    message = lease.message
    return {"queue": lease.subscription.queue, "message_id": message.id, "attempt": message.receive_count, **more}
