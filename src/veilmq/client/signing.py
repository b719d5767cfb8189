"""Signed requests: AWS Signature Version 4 with the key that the variables of AWS's own tools name.

The same canonical form and the same key of the day as the server's (``wire.sqs.sigv4``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from hmac import digest

from veilmq.wire.sqs import canonical
from veilmq.wire.sqs.context import DEFAULT_REGION
from veilmq.wire.sqs.sigv4 import ALGORITHM, signing_key


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
            canonical.path(path),
            canonical.query(canonical.pairs(query)),
            "".join(f"{name}:{value}\n" for name, value in lines).encode(),
            names.encode(),
            sha256(body).hexdigest().encode(),
        )
        scope = f"{date[:8]}/{self.region}/sqs/aws4_request"
        text = f"{ALGORITHM.decode()}\n{date}\n{scope}\n{sha256(request).hexdigest()}"
        signature = digest(signing_key(self.secret.encode(), scope.encode()), text.encode(), "sha256").hex()
        credential = f"Credential={self.id}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**whole, "Authorization": f"{ALGORITHM.decode()} {credential}"}


def key_of(environment: Mapping[str, str]) -> SigningKey | None:
    """Return the key that the variables of AWS's tools name, ``None`` where they name none."""
    key_id, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not key_id or not secret:
        return None
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    token = environment.get("AWS_SESSION_TOKEN") or None
    return SigningKey(id=key_id, secret=secret, session_token=token, region=region)
