"""The server: sockets, dispatch to protocols, long polls, permissions, health and metrics.

It connects `wire` with a store and contains the rules of neither.
"""
