"""Alibaba Cloud SMQ (formerly MNS), API version 2015-06-06: a table of routes (``routes.ROUTES``), and XML.

``request.read_request`` parses a request; ``routes.decode`` makes its ``Plan``, which encodes the result or a
``SmqError``.
"""
