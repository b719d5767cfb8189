"""The rules of the queue: what is visible, to whom, until when.

Everything here is pure. Time comes in as ``now_ms`` (integer milliseconds since the epoch), bytes and sockets stay
outside, and nothing in this package imports another part of veilmq.
"""
