"""A receiver, and a server that may push to it."""

from tests.server.pushing.conftest import receiver, server  # noqa: F401
