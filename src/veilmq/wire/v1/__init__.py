"""veilmq's own HTTP API, version 1: typed JSON, and Arrow for many messages at once.

``routes`` has the table of requests and turns each into a ``Plan``; see ``docs/protocols``. Nothing is imported here:
clients need single modules.
"""
