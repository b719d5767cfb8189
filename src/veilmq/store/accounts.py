"""What accounts have set, kept among the store's own values: one for each account that has set anything."""

import msgspec

from veilmq.core.account_settings import AccountSettings, SetAccount, ShowAccount
from veilmq.store.transaction import Transaction

_decoder = msgspec.json.Decoder(AccountSettings)


async def show_account(tx: Transaction, command: ShowAccount) -> AccountSettings:
    """Return what the account has set; all is as at first where it has set nothing."""
    kept = await tx.value("setting", _name(command))
    return AccountSettings() if kept is None else _decoder.decode(kept)


async def set_account(tx: Transaction, command: SetAccount) -> None:
    """Put other settings in place of the account's."""
    await tx.run("put_setting", _name(command), msgspec.json.encode(command.settings))


def _name(command: ShowAccount | SetAccount) -> str:
    return f"account {command.account}"
