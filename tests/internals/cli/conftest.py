"""Fixtures for the tests of commands."""

from tests.cli.conftest import clean_settings, server, veilmq  # noqa: F401
