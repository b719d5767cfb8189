"""The server: sockets, dispatch to the protocols, long polls, permissions, health and metrics.

It connects the wire with a store and has the rules of neither.
"""
