"""What was done, and what is being done: records that keep work from being done twice.

``port`` is what a store has to do, ``in_memory`` and ``in_file`` are two of them, ``idempotency`` says which record is
a message's, ``keeper`` holds them for a running handler.
"""
