"""Where the queue is and who asks: the options that source and sink share.

Credentials are found on the driver and travel with the plan, so that executors need no variables of their own. The
names of the options with secrets are among those that Spark blanks by itself (``spark.redaction.regex``).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from veilmq.client.endpoint import DEFAULT_ENDPOINT, ENDPOINT_VARIABLES, endpoint_of
from veilmq.client.signing import SigningKey, key_of
from veilmq.spark.options import TEXT, Option, OptionWrong
from veilmq.wire.sqs.context import DEFAULT_REGION

OPTIONS = (
    Option(
        name="endpoint",
        field="endpoint",
        kind=TEXT,
        shown=f"{', '.join(f'`${name}`' for name in ENDPOINT_VARIABLES)} of the driver, else `{DEFAULT_ENDPOINT}`",
        doc="URL of the server.",
    ),
    Option(
        name="queue",
        field="queue",
        kind=TEXT,
        shown="needed",
        doc='Name of the queue, or its URL. `load("NAME")` says the same.',
    ),
    Option(name="path", field="path", kind=TEXT, doc="What `load` and `start` are given: another way to say `queue`."),
    Option(
        name="accessKey",
        field="access_key",
        kind=TEXT,
        shown="`$AWS_ACCESS_KEY_ID` of the driver",
        doc="Id of the key that signs the requests; with `secretKey`.",
        secret=True,
    ),
    Option(
        name="secretKey",
        field="secret_key",
        kind=TEXT,
        shown="`$AWS_SECRET_ACCESS_KEY` of the driver",
        doc="Secret of that key.",
        secret=True,
    ),
    Option(
        name="sessionToken",
        field="session_token",
        kind=TEXT,
        shown="`$AWS_SESSION_TOKEN` of the driver",
        doc="Token that belongs to a temporary key.",
        secret=True,
    ),
    Option(
        name="region",
        field="region",
        kind=TEXT,
        shown=f"`$AWS_REGION`, else `{DEFAULT_REGION}`",
        doc="Region that the signature names.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An endpoint, a queue (name or URL) and a key; the key shows no secret."""

    endpoint: str
    queue: str
    key: SigningKey | None = field(default=None)

    @classmethod
    def of(cls, values: dict[str, Any], environment: Mapping[str, str] = os.environ) -> Self:
        """Take what ``OPTIONS`` read out of ``values``; raises ``OptionWrong``."""
        taken = {option.field: values.pop(option.field) for option in OPTIONS}
        queue = taken["queue"] or taken["path"]
        if not queue:
            raise OptionWrong('option queue: is needed; say .option("queue", "NAME") or .load("NAME")')
        if taken["queue"] and taken["path"] and taken["queue"] != taken["path"]:
            raise OptionWrong(f"option queue = {queue!r}: there is also a path, {taken['path']!r}; say one of them")
        endpoint = taken["endpoint"] or endpoint_of(environment)
        if not endpoint.startswith(("http://", "https://")):
            raise OptionWrong(f"option endpoint = {endpoint!r}: must look like {DEFAULT_ENDPOINT}")
        return cls(endpoint=endpoint, queue=queue, key=_key(taken, environment))


def _key(taken: dict[str, Any], environment: Mapping[str, str]) -> SigningKey | None:
    found = key_of(environment)
    region = taken["region"] or (found.region if found else environment.get("AWS_REGION") or DEFAULT_REGION)
    if bool(taken["access_key"]) != bool(taken["secret_key"]):
        raise OptionWrong("option accessKey: goes with secretKey; give both, or none for the key of the environment")
    if taken["access_key"]:
        return SigningKey(
            id=taken["access_key"], secret=taken["secret_key"], session_token=taken["session_token"], region=region
        )
    if found is None:
        return None
    return SigningKey(id=found.id, secret=found.secret, session_token=found.session_token, region=region)
