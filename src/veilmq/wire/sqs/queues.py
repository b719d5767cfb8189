"""The actions on queues, their attributes, tags and permissions."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from veilmq.core import commands, limits
from veilmq.core.commands import EditQueue, QueuePage
from veilmq.core.errors import EditRefused, QueueExists, TooManyTags
from veilmq.wire.exchange import Plan, RequestContext, root_arn
from veilmq.wire.sqs import errors, members, queue_attributes
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import Integer, Request, Shape, check_number, empty_response, required, unwrap
from veilmq.wire.sqs.names import (
    LOOSE_NAME,
    Listing,
    account_of,
    new_queue,
    queue_arn,
    queue_of,
    queue_url,
    required_name,
)
from veilmq.wire.sqs.policies import GRANTABLE, PolicyError, decode, read_policy, statements
from veilmq.wire.sqs.queue_attributes import ALL, ATTRIBUTE_OF, describe, read_settings, unwrap_setting_result


class ListQueuesResult(Shape):
    queue_urls: list[str] | None = None
    next_token: str | None = None


class GetQueueAttributesResult(Shape):
    """The result of GetQueueAttributes; all values are strings."""

    attributes: dict[str, str] | None = None


class ListQueueTagsResult(Shape):
    tags: dict[str, str] | None = msgspec.field(default=None, name="Tags")


class ListDeadLetterSourceQueuesResult(Shape):
    """The result of ListDeadLetterSourceQueues; in the service model, the first member begins with a small letter."""

    queue_urls: list[str] = msgspec.field(name="queueUrls")
    next_token: str | None = None


# Tags. A key has 1 to 128 characters and does not begin with ``aws:``; a value has up to 256. Both have only letters,
# digits, spaces and ``_ . : / = + - @`` (SQS Developer Guide, "Cost allocation tags"; AWS General Reference,
# "Tagging").

_ALLOWED = "letters, digits, spaces and _ . : / = + - @"
_CHARACTERS = r"[\w .:/=+@-]"
_KEY = re.compile(rf"(?!(?i:aws:)){_CHARACTERS}{{1,{limits.SQS_TAG_KEY_CHARACTERS_MAX}}}")
_VALUE = re.compile(rf"{_CHARACTERS}{{0,{limits.SQS_TAG_VALUE_CHARACTERS_MAX}}}")


class TagQueue(members.QueueRequest):
    """TagQueue: adds tags to a queue; an existing tag gets the new value."""

    tags: dict[str, str] | None = msgspec.field(default=None, name="Tags")  # in CreateQueue with a small letter

    def plan(self, context: RequestContext) -> Plan:
        queue = queue_of(self.queue_url, context)
        if not self.tags:
            raise errors.missing_parameter("Tags")

        def respond(result: Any) -> None:
            if isinstance(result, TooManyTags):
                raise errors.too_many_tags(queue)
            unwrap(result)

        return Plan(commands.TagQueue(queue=queue, tags=read_tags(self.tags, queue)), respond)


class UntagQueue(members.QueueRequest):
    """UntagQueue: removes tags by their keys; missing ones are ignored."""

    tag_keys: list[str] | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = queue_of(self.queue_url, context)
        keys = self.tag_keys or [""]
        for key in keys:
            _check_key(key)
        return Plan(commands.TagQueue(queue=queue, removed=tuple(keys)), empty_response)


class ListQueueTags(members.QueueRequest):
    """ListQueueTags: lists all tags of a queue."""

    def plan(self, context: RequestContext) -> Plan:
        command = commands.ShowQueue(queue=queue_of(self.queue_url, context))
        return Plan(command, lambda result: ListQueueTagsResult(tags=unwrap(result).settings.tags or None))


def read_tags(tags: Mapping[str, str], queue: str) -> dict[str, str]:
    """Check and return the tags for ``queue``; raises InvalidParameterValue."""
    if len(tags) > limits.SQS_TAGS_MAX:
        raise errors.too_many_tags(queue)
    for key, value in tags.items():
        _check_key(key)
        if not _VALUE.fullmatch(value):
            why = f"A tag's value has up to {limits.SQS_TAG_VALUE_CHARACTERS_MAX} characters: {_ALLOWED}."
            raise errors.invalid_parameter("Tags", value, why)
    return dict(tags)


def _check_key(key: str) -> None:
    if not 1 <= len(key) <= limits.SQS_TAG_KEY_CHARACTERS_MAX:
        why = f"Tag keys must be between 1 and {limits.SQS_TAG_KEY_CHARACTERS_MAX} characters in length."
        raise errors.invalid(why)
    if not _KEY.fullmatch(key):
        raise errors.invalid_parameter(
            "TagKeys",
            key,
            f"A tag's key has 1 to {limits.SQS_TAG_KEY_CHARACTERS_MAX} characters ({_ALLOWED}) "
            "and does not begin with aws:.",
        )


# CreateQueue, GetQueueUrl, ListQueues, DeleteQueue, PurgeQueue, GetQueueAttributes and SetQueueAttributes.


class CreateQueue(Request):
    """CreateQueue: creates the queue, or returns it if it exists with the given attributes."""

    queue_name: str | None = None
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = None

    def plan(self, context: RequestContext) -> Plan:
        attributes = self.attributes or {}
        queue = new_queue(
            self.queue_name, context, fifo=attributes.get(queue_attributes.FIFO_QUEUE, "").lower() == "true"
        )
        changes = read_settings(attributes, queue, context)
        tags = read_tags(self.tags or {}, queue)
        url_response = _url_response(context)

        def respond(result: Any) -> members.QueueUrlResult:
            if isinstance(result, QueueExists):
                why = "A queue already exists with the same name and a different value for attribute"
                raise SqsError(errors.QUEUE_NAME_EXISTS, f"{why} {ATTRIBUTE_OF[result.setting]}")
            return url_response(unwrap_setting_result(result, attributes, queue))

        return Plan(commands.CreateQueue(queue=queue, settings=changes, tags=tags), respond)


class GetQueueUrl(Request):
    """GetQueueUrl: returns the URL of a queue of the caller, or of the account that the request names."""

    queue_name: str | None = None
    queue_owner_aws_account_id: str | None = None

    def plan(self, context: RequestContext) -> Plan:
        name, owner = required_name(self.queue_name), self.queue_owner_aws_account_id
        if not LOOSE_NAME.fullmatch(name + (owner or "")):
            raise SqsError(errors.QUEUE_DOES_NOT_EXIST, errors.NO_SUCH_QUEUE)
        account = context.account if not owner else owner + context.account.removeprefix(account_of(context.account))
        return Plan(commands.ShowQueue(queue=f"{account}/{name}"), _url_response(context))


class ListQueues(Request):
    """ListQueues: lists the caller's queues by name; in pages only if MaxResults is given, as on AWS."""

    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: Integer | None = None

    def plan(self, context: RequestContext) -> Plan:
        prefix = self.queue_name_prefix or ""
        listing = Listing("ListQueues", prefix, context)
        position = _page(self, listing)

        def respond(result: Any) -> ListQueuesResult:
            page: QueuePage = unwrap(result)
            urls = [queue_url(f"{context.account}/{name}", context) for name in page.names]
            return ListQueuesResult(queue_urls=urls or None, next_token=_next_token(self, listing, page))

        found = prefix if not prefix or LOOSE_NAME.fullmatch(prefix) else "/"  # no name has either prefix
        return Plan(commands.ListQueues(account=context.account, prefix=found, **position), respond)


class ListDeadLetterSourceQueues(members.QueueRequest):
    """ListDeadLetterSourceQueues: lists the queues whose RedrivePolicy names this one; in pages with MaxResults."""

    next_token: str | None = None
    max_results: Integer | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = queue_of(self.queue_url, context)
        listing = Listing("ListDeadLetterSourceQueues", queue, context)
        position = _page(self, listing)

        def respond(result: Any) -> ListDeadLetterSourceQueuesResult:
            page: QueuePage = unwrap(result)
            urls = [queue_url(name, context) for name in page.names]
            return ListDeadLetterSourceQueuesResult(queue_urls=urls, next_token=_next_token(self, listing, page))

        return Plan(commands.ListDeadLetterSources(queue=queue, **position), respond)


def _page(request: ListQueues | ListDeadLetterSourceQueues, listing: Listing) -> dict[str, Any]:
    """Return the page that a request selects, as fields of a list command."""
    check_number("MaxResults", request.max_results)
    count = request.max_results or limits.SQS_LIST_RESULTS.default
    return {"after": listing.name_of(request.next_token), "count": count}


def _next_token(request: ListQueues | ListDeadLetterSourceQueues, listing: Listing, page: QueuePage) -> str | None:
    more = page.more and request.max_results is not None
    return listing.token_after(page.names[-1]) if more else None


class DeleteQueue(members.QueueRequest):
    """DeleteQueue: deletes a queue with all its messages."""

    def plan(self, context: RequestContext) -> Plan:
        return Plan(commands.DeleteQueue(queue=queue_of(self.queue_url, context)), empty_response)


class PurgeQueue(members.QueueRequest):
    """PurgeQueue: deletes all messages, also those in flight."""

    def plan(self, context: RequestContext) -> Plan:
        return Plan(commands.PurgeQueue(queue=queue_of(self.queue_url, context)), empty_response)


class GetQueueAttributes(members.QueueRequest):
    """GetQueueAttributes: returns the named attributes, or All."""

    attribute_names: list[str] | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = queue_of(self.queue_url, context)
        names = self.attribute_names or []
        for name in names:
            if name not in queue_attributes.NAMES:
                raise errors.unknown_attribute(name)

        def respond(result: Any) -> GetQueueAttributesResult:
            return GetQueueAttributesResult(attributes=describe(unwrap(result), names, context) or None)

        counts = not queue_attributes.COUNTED.union([ALL]).isdisjoint(names)
        return Plan(commands.ShowQueue(queue=queue, counts=counts), respond)


class SetQueueAttributes(members.QueueRequest):
    """SetQueueAttributes: sets the given attributes; the others, and leases in flight, do not change."""

    attributes: dict[str, str] | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = queue_of(self.queue_url, context)
        attributes = self.attributes
        if not attributes:
            raise errors.missing_parameter("Attribute.Name")

        def respond(result: Any) -> None:
            unwrap_setting_result(result, attributes, queue)

        return Plan(commands.SetQueue(queue=queue, settings=read_settings(attributes, queue, context)), respond)


def _url_response(context: RequestContext) -> Callable[[Any], members.QueueUrlResult]:
    return lambda result: members.QueueUrlResult(queue_url=queue_url(unwrap(result).queue, context))


# AddPermission and RemovePermission edit the attribute ``Policy``: a permission is a statement whose ``Sid`` is the
# label. AddPermission writes the statement as AWS does, for tools that read policies; other statements do not change.
# Each is one command that reads and writes, so concurrent changes are not lost.

_LABEL = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.SQS_POLICY_LABEL_CHARACTERS_MAX}}}")


class AddPermission(members.QueueRequest):
    """AddPermission: permits other accounts some actions on a queue, by a statement in its policy."""

    label: str | None = None
    aws_account_ids: list[str] | None = None
    actions: list[str] | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = queue_of(self.queue_url, context)
        label, actions, accounts = _label(self.label), self.actions, self.aws_account_ids
        if not actions:
            raise errors.missing_parameter("Actions")
        if len(actions) > limits.SQS_POLICY_ACTIONS_MAX:
            why = f"{len(actions)} Actions were found, maximum allowed is {limits.SQS_POLICY_ACTIONS_MAX}."
            raise SqsError(errors.OVER_LIMIT, why)
        for action in actions:
            if action != "*" and action not in GRANTABLE:
                why = "Only the queue owner is allowed to invoke this action."
                raise errors.invalid_parameter("ActionName", f"SQS:{action}", why)
        if not accounts:
            raise errors.invalid_parameter("PrincipalId", "[]", "Unable to verify.")
        for account in accounts:
            if not re.fullmatch("[0-9]{12}", account):
                raise errors.invalid_parameter("PrincipalId", f"[{account}]", "Unable to verify.")
        statement = {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _single([root_arn(account) for account in accounts])},
            "Action": _single([f"SQS:{action}" for action in actions]),
            "Resource": queue_arn(queue, context),
        }
        return Plan(EditQueue(queue=queue, setting="policy", edit=Grant(statement)), _edited)


class RemovePermission(members.QueueRequest):
    """RemovePermission: removes the statement with a label from the policy of a queue."""

    label: str | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = queue_of(self.queue_url, context)
        return Plan(EditQueue(queue=queue, setting="policy", edit=Revoke(_label(self.label))), _edited)


@dataclass(frozen=True, slots=True)
class Grant:
    """Add ``statement`` to a policy, or to a new one."""

    statement: dict[str, Any]

    def __call__(self, text: str) -> str:
        """Return the new document; raises ``EditRefused`` if the label exists or the policy would be too large."""
        label, arn = self.statement["Sid"], self.statement["Resource"]
        document = decode(text) if text else {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy"}
        prior = statements(document) if text else []
        if any(other.get("Sid") == label for other in prior):
            raise EditRefused(errors.invalid_parameter("Label", label, "Already exists."))
        if len(prior) >= limits.SQS_POLICY_STATEMENTS_MAX:
            why = f"{len(prior) + 1} statements were found, maximum allowed is {limits.SQS_POLICY_STATEMENTS_MAX}."
            raise EditRefused(SqsError(errors.OVER_LIMIT, why))
        made = _encode(document | {"Statement": [*prior, self.statement]})
        try:
            read_policy(made, arn)
        except PolicyError as error:
            raise EditRefused(SqsError(errors.OVER_LIMIT, f"The policy would be invalid: {error}.")) from None
        return made


@dataclass(frozen=True, slots=True)
class Revoke:
    """Remove the statement ``label`` from a policy, and the policy with its last statement."""

    label: str

    def __call__(self, text: str) -> str:
        """Return the new document; raises ``EditRefused`` if there is no such statement."""
        document = decode(text) if text else {}
        prior = statements(document) if text else []
        left = [statement for statement in prior if statement.get("Sid") != self.label]
        if len(left) == len(prior):
            why = "can't find label on existing policy." if text else "can't find label."
            raise EditRefused(errors.invalid_parameter("Label", self.label, why))
        return _encode(document | {"Statement": left}) if left else ""


def _edited(result: Any) -> None:
    if isinstance(result, EditRefused):
        raise result.reason
    unwrap(result)


def _label(label: str | None) -> str:
    found = required("Label", label)
    if not _LABEL.fullmatch(found):
        raise errors.invalid(
            "Label can only include alphanumeric characters, hyphens, or underscores. "
            f"1 to {limits.SQS_POLICY_LABEL_CHARACTERS_MAX} in length"
        )
    return found


def _single(texts: list[str]) -> str | list[str]:
    """Return texts as AWS writes them in a statement: without repetitions, a single one without a list."""
    distinct = list(dict.fromkeys(texts))
    return distinct[0] if len(distinct) == 1 else distinct


def _encode(document: dict[str, Any]) -> str:
    return msgspec.json.encode(document).decode()
