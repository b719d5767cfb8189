"""The data folder that a command is about: the one that serve would use with the same settings."""

from pathlib import Path

from veilmq.cli.failures import UsageError
from veilmq.cli.settings_options import read_settings


def data_folder(data: str | None, config: Path | None) -> Path:
    """Return the folder; raises ``UsageError`` when the settings name none."""
    folder = read_settings({"data": data}, config).data
    if folder is None:
        raise UsageError("The settings name no data folder; name one with --data.")
    return folder
