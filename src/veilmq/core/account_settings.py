"""What an account has set for all its queues: kept and shown, no more (SMQ reference, section 4.14)."""

import msgspec

from veilmq.core.commands import Command


class AccountSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``logging_bucket`` is where SMQ would put the records of operations; empty for nowhere."""

    logging_bucket: str = ""


class ShowAccount(Command, frozen=True, kw_only=True):
    """Tell what ``account`` has set. Answers ``AccountSettings``."""

    account: str


class SetAccount(Command, frozen=True, kw_only=True):
    """Give ``account`` other settings. Answers ``None``."""

    account: str
    settings: AccountSettings
