"""The server: sockets, dispatch to the protocols, long polls, health and metrics.

It introduces the wire to an engine and knows the rules of neither.
"""
