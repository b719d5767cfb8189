"""Signed requests: AWS Signature Version 4 with the key that the variables of AWS's own tools name.

The same canonical form and the same key of the day as the server's (``wire.sqs.signatures``). A signature has a date,
and servers refuse one that is minutes away from theirs; a ``Signer`` then goes by the date of the refusal.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from hmac import digest

from veilmq.wire.exchange import DEFAULT_REGION
from veilmq.wire.sqs.signatures import ALGORITHM, canonical_path, canonical_query, query_pairs, signing_key

OFF_S_MIN = 120.0
"""Services refuse dates that are 5 minutes off, or 15; one that is off by less than this was not refused for it."""
YEARS = range(2000, 2100)
"""Of a date that is believed: one far from all clocks may have none beside it, and then nothing could be signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """An access key; its secret and token are shown nowhere."""

    id: str
    secret: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str = DEFAULT_REGION

    def sign(
        self, target: str, headers: Mapping[str, str], body: bytes, *, now: datetime, method: str = "POST"
    ) -> dict[str, str]:
        """Return ``headers`` of a request for ``target`` (a path, perhaps with a query) with date and signature.

        ``Host`` is among them, ``now`` in UTC.
        """
        date = now.strftime("%Y%m%dT%H%M%SZ")
        whole = {**headers, "X-Amz-Date": date}
        if self.session_token is not None:
            whole["X-Amz-Security-Token"] = self.session_token
        lines = sorted((name.lower(), value) for name, value in whole.items())
        names = ";".join(name for name, _ in lines)
        path, _, query = target.encode().partition(b"?")
        request = b"%b\n%b\n%b\n%b\n%b\n%b" % (
            method.encode(),
            canonical_path(path),
            canonical_query(query_pairs(query)),
            "".join(f"{name}:{value}\n" for name, value in lines).encode(),
            names.encode(),
            sha256(body).hexdigest().encode(),
        )
        scope = f"{date[:8]}/{self.region}/sqs/aws4_request"
        text = f"{ALGORITHM.decode()}\n{date}\n{scope}\n{sha256(request).hexdigest()}"
        signature = digest(signing_key(self.secret.encode(), scope.encode()), text.encode(), "sha256").hex()
        credential = f"Credential={self.id}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**whole, "Authorization": f"{ALGORITHM.decode()} {credential}"}


class Signer:
    """A key and a clock; threads may share it."""

    def __init__(self, key: SigningKey, wall_s: Callable[[], float]) -> None:
        """``wall_s`` gives the seconds since the epoch, as far as this machine knows them."""
        self._key = key
        self._wall_s = wall_s
        self._behind_s = 0.0

    def now_s(self) -> float:
        """Return the present instant, as far as is known."""
        return self._wall_s() + self._behind_s

    def sign(self, target: str, headers: Mapping[str, str], body: bytes, *, at_s: float, method: str) -> dict[str, str]:
        """Return ``headers`` with the date ``at_s`` and the signature, as ``SigningKey.sign`` does."""
        return self._key.sign(target, headers, body, now=datetime.fromtimestamp(at_s, UTC), method=method)

    def is_set_right(self, date: str | None, *, signed_at_s: float) -> bool:
        """Take ``date``, that of a refusal, for the present if the request's was minutes off; tell whether it was.

        Then it is worth another try. A ``date`` that is none, or nobody's present, changes nothing.
        """
        server_s = _instant_s(date or "")
        if server_s is None or abs(server_s - signed_at_s) < OFF_S_MIN:
            return False
        self._behind_s = server_s - self._wall_s()
        return True


def _instant_s(date: str) -> float | None:
    """Return the instant of a ``Date`` in seconds since the epoch, ``None`` for what is none or cannot be now."""
    try:
        found = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    return found.replace(tzinfo=found.tzinfo or UTC).timestamp() if found.year in YEARS else None


def key_of(environment: Mapping[str, str]) -> SigningKey | None:
    """Return the key that the variables of AWS's tools name, ``None`` where they name none."""
    key_id, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not key_id or not secret:
        return None
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    token = environment.get("AWS_SESSION_TOKEN") or None
    return SigningKey(id=key_id, secret=secret, session_token=token, region=region)
