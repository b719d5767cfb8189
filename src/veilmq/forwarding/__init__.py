"""Forwarding without Spark: from an intake queue to the queue that rules name for each message."""
