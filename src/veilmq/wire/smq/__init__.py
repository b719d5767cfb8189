"""Alibaba Cloud SMQ (formerly MNS), API version 2015-06-06: one table of routes, and XML.

``request.read_request`` takes a request apart, ``routes.decode`` makes a ``Plan`` of it by the table ``ROUTES``, and
the call makes the reply of the engine's result. An error of any kind is a ``SmqError`` before it is bytes.
"""
