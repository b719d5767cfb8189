"""Accounts and policies, to be read: the keys of an account, what policies say, and what the caller may do."""

from collections.abc import Sequence
from typing import NamedTuple

from starlette.responses import Response

from veilmq.console.asking import Refused
from veilmq.console.page import Page
from veilmq.console.policy_words import StatementWords, in_words
from veilmq.console.queue_look import Named, named, url_of
from veilmq.console.visit import Visit
from veilmq.core.limits import SECOND_MS

_QUEUES_MAX = 50


class QueuePolicy(NamedTuple):
    """The policy of a queue: its ``statements`` (``None``: nobody can read it), and actions that the caller may do.

    ``is_hidden`` where the caller may not see it, and then there is nothing else.
    """

    queue: str
    text: str
    statements: list[StatementWords] | None
    may: Sequence[tuple[str, bool]] | None
    is_hidden: bool = False


async def show(visit: Visit) -> Response:
    """Show the caller's account, and the policies of its queues whose names begin as asked, or of one by its whole."""
    search = visit.query.get("search", "").strip()
    found = Named([search]) if "/" in search else await named(visit, search, count_max=_QUEUES_MAX)
    keys = visit.ports.keys
    return visit.page(
        "accounts.html",
        keys=None if keys is None else [(key, _instant_ms(key.expires_at_s)) for key in keys(visit.account)],
        policies=[await _policy(visit, queue) for queue in found.queues],
        has_more=found.has_more,
        search=search,
        problem=found.problem,
    )


async def _policy(visit: Visit, queue: str) -> QueuePolicy:
    asked = {"QueueUrl": url_of(queue), "AttributeNames": ["Policy"]}
    try:
        found = await visit.sqs("GetQueueAttributes", asked)
    except Refused:
        return QueuePolicy(queue, "", None, None, is_hidden=True)
    text = found.get("Attributes", {}).get("Policy", "")
    return QueuePolicy(queue, text, in_words(text) if text else [], _may(visit, queue, text))


def _may(visit: Visit, queue: str, policy: str) -> Sequence[tuple[str, bool]] | None:
    """Return what the caller may do, ``None`` where nobody is asked who he is: everything."""
    if visit.caller is None:
        return None
    return visit.ports.may(visit.caller, queue, policy, peer=visit.peer, program=visit.program)


def _instant_ms(at_s: float | None) -> int | None:
    return None if at_s is None else int(at_s * SECOND_MS)


PAGES = (Page("/console/accounts", show),)
