"""veilmq's own HTTP API, version 1 (``docs/protocols``): JSON, and Arrow for bulk reads and writes.

``routes`` has the table of routes. Clients need only single modules, so nothing is imported here.
"""
