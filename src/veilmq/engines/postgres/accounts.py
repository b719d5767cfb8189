"""What accounts have set, kept among the store's own values: one for each account that set anything."""

import msgspec

from veilmq.core.account_settings import AccountSettings, SetAccount, ShowAccount
from veilmq.engines.postgres.catalog import SQL
from veilmq.engines.postgres.database import Database

_decoder = msgspec.json.Decoder(AccountSettings)


class Accounts:
    """The commands of ``core.account_settings``."""

    def __init__(self, *, database: Database) -> None:
        """``database`` keeps the settings."""
        self._database = database

    async def show(self, command: ShowAccount) -> AccountSettings:
        """Tell what the account has set; all is as at first where it has set nothing."""
        async with self._database.connection() as connection:
            kept = await connection.fetchval(SQL["get_meta"], _name(command))
        return AccountSettings() if kept is None else _decoder.decode(kept)

    async def set(self, command: SetAccount) -> None:
        """Put other settings in place of the account's."""
        async with self._database.connection() as connection:
            await connection.execute(SQL["put_meta"], _name(command), msgspec.json.encode(command.settings))


def _name(command: ShowAccount | SetAccount) -> str:
    return f"account {command.account}"
