"""What accounts have set, kept among the store's own values: one for each account that set anything."""

from collections.abc import Callable
from typing import Any

import msgspec

from veilmq.core.account_settings import AccountSettings, SetAccount, ShowAccount
from veilmq.core.commands import Command
from veilmq.engines.embedded.journal import Journal

_decoder = msgspec.json.Decoder(AccountSettings)


class Accounts:
    """The commands of ``core.account_settings``."""

    def __init__(self, *, journal: Journal) -> None:
        """``journal`` keeps the settings."""
        self._journal = journal
        self.handlers: dict[type[Command], Callable[[Any, int], object]] = {
            ShowAccount: self.show,
            SetAccount: self.set,
        }

    def show(self, command: ShowAccount, now_ms: int) -> AccountSettings:
        """Tell what the account has set; all is as at first where it has set nothing."""
        kept = self._journal.meta().get(_name(command))
        return AccountSettings() if kept is None else _decoder.decode(kept)

    def set(self, command: SetAccount, now_ms: int) -> None:
        """Put other settings in place of the account's."""
        self._journal.put_meta(_name(command), msgspec.json.encode(command.settings))


def _name(command: ShowAccount | SetAccount) -> str:
    return f"account {command.account}"
