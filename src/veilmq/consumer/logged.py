"""What a line of the log is about, as fields beside its text for machines; tracebacks stand in texts, too."""

import logging

from veilmq.consumer.leases import Lease


def about(lease: Lease, **more: object) -> dict[str, object]:
    """Return the fields of a line about the message of ``lease``, for ``extra``."""
    message = lease.message
    return {"queue": lease.subscription.queue, "message_id": message.id, "attempt": message.receive_count, **more}


def with_traceback(record: logging.LogRecord) -> bool:
    """Have each formatter of text write the field ``trace`` below the line, as it does the traceback of an exception.

    A filter of loggers, and lets all pass. The exception itself may have been raised in another process.
    """
    trace = getattr(record, "trace", "")
    if trace and record.exc_info is None:
        record.exc_text = trace.rstrip()
    return True
