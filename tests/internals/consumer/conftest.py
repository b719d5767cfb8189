"""The bench of the consumer's tests."""

from tests.consumer.conftest import bench  # noqa: F401
