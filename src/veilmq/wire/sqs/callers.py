"""Who may ask: an access key, with which requests are signed, and the caller who holds it.

A caller is an account itself (``root``) or one of its users. Their names and ids look as those of AWS IAM do, because
queue policies name them and messages tell them (IAM User Guide, "IAM identifiers").
"""

from base64 import b32encode
from hashlib import sha256

import msgspec

from veilmq.core import properties
from veilmq.core.properties import Attribute, Properties

SENDER_ID = "SenderId"
_USER_ID_CHARACTERS = 17


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """One principal: ``account`` has 12 digits, ``user`` is empty for the account itself.

    ``sent`` is what a message without properties of its own has to carry to tell who sent it.
    """

    account: str
    user: str
    arn: str
    sender_id: str
    sender: Attribute
    sent: bytes

    @property
    def is_root(self) -> bool:
        """Whether this is the account itself."""
        return not self.user


def caller(account: str, user: str = "") -> Caller:
    """Return the caller that ``account``, or a ``user`` of it, is."""
    sender_id = _user_id(account, user) if user else account
    sender = Attribute("String", sender_id)
    return Caller(
        account=account,
        user=user,
        arn=f"arn:aws:iam::{account}:user/{user}" if user else root_arn(account),
        sender_id=sender_id,
        sender=sender,
        sent=properties.encode(Properties(system={SENDER_ID: sender})),
    )


def caller_of(arn: str) -> Caller:
    """Return the caller that an account's or a user's name as a principal stands for."""
    *_, account, resource = arn.split(":", 5)
    return caller(account, resource.partition("/")[2])


def root_arn(account: str) -> str:
    """Return the name of an account as a principal."""
    return f"arn:aws:iam::{account}:root"


def _user_id(account: str, user: str) -> str:
    """Return the unique id of a user: the prefix of AWS, and letters and digits that its name decides."""
    digest = sha256(f"{account}/{user}".encode()).digest()
    return "AIDA" + b32encode(digest).decode()[:_USER_ID_CHARACTERS]


class AccessKey:
    """A key: its secret is known here and shown nowhere. Instants are seconds since the epoch."""

    __slots__ = ("caller", "expires_at_s", "id", "secret", "session_token")

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 (the word of everyone)
        secret: str,
        caller: Caller,
        session_token: str | None = None,
        expires_at_s: float | None = None,
    ) -> None:
        """``session_token`` must come with each request of a temporary key, ``expires_at_s`` ends any key."""
        self.id = id
        self.caller = caller
        self.secret = secret.encode()
        self.session_token = session_token.encode() if session_token is not None else None
        self.expires_at_s = expires_at_s

    def __repr__(self) -> str:
        """Tell whose key it is, and no secret."""
        return f"AccessKey(id={self.id!r}, caller={self.caller.arn!r})"
