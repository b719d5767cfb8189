"""``veilmq serve``."""

from typing import Any

from veilmq.cli.extras import needs_extra
from veilmq.cli.settings_options import Config, read_settings, with_settings


@with_settings
def serve(*, config: Config = None, **options: Any) -> int:
    """Run a server until it is told to stop.

    Each option is also a variable of the environment (VEILMQ_ADMIN_PORT for
    --admin-port) and a key of the settings file (admin_port). An option beats
    the environment, and that the file.
    """
    settings = read_settings(options, config)
    with needs_extra("server", command="serve"):
        from veilmq.server.app import run
    return run(settings)
