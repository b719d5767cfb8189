"""A receiver of pushes."""

from tests.server.pushing.conftest import receiver  # noqa: F401
