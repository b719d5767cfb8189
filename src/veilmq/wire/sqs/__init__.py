"""Amazon SQS, API version 2012-11-05: one table of actions (``actions.ACTIONS``) and a codec for each protocol.

``json`` and ``query`` decode bytes to a ``Plan`` and encode its result, or a ``SqsError``, as a ``Reply``. Clients need
only some small modules, so nothing is imported here.
"""
