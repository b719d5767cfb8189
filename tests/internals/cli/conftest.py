"""What the tests of the commands run on."""

from tests.cli.conftest import clean_settings, client, server, veilmq  # noqa: F401
