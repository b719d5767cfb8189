"""Amazon SQS, API version 2012-11-05: one table of actions, one codec per protocol.

``json`` and ``query`` turn bytes into a ``Plan`` and its result into a ``Reply``; ``actions.ACTIONS`` is the table
behind them. An error of any kind is a ``SqsError`` before it is bytes. Clients use some small modules alone, so nothing
is imported here.
"""
