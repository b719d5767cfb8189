"""What the tests of the commands run on."""

from tests.cli.conftest import clean_settings, server, veilmq  # noqa: F401
