"""The Query protocol: the codec of older AWS SDKs, of curl, and of URLs.

The parameters ``Action``, ``Version`` and the members of the request come in the query string, in a form, or in both;
the reply is XML. The queue is the one in ``QueueUrl``, or else the one at whose URL the request was made; of the
actions that are about no queue only GetQueueUrl is valid there. ``Version`` may be left out. Parameters that the action
does not know are ignored, as are those of signatures (``AWSAccessKeyId``, ``Signature``, ``X-Amz-…``).

What does not fit is MalformedInput: that is what SQS's users report for names that are no list
(``MessageAttributeNames.member.1``: "Start of list found where not expected") and numbers that are no index
("0 is not a valid index"). Values that cannot be converted get the same code and the words of the JSON protocol, as
the same framework of AWS's is behind both. A query string that cannot be read is MalformedQueryString, another
version NoSuchVersion (API Reference, "Common Errors").
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from veilmq.core.commands import Command
from veilmq.wire.sqs import request_id
from veilmq.wire.sqs.actions import ACTIONS, Action, unknown_action
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import NO_QUEUE, NO_SUCH_VERSION, QUEUE_DOES_NOT_EXIST, SqsError, shown
from veilmq.wire.sqs.mismatch import explain
from veilmq.wire.sqs.plan import Plan, Respond
from veilmq.wire.sqs.query_form import Form, Node, Tree, malformed, parameters
from veilmq.wire.sqs.query_members import reader
from veilmq.wire.sqs.query_replies import error_json, error_xml, response_json, response_xml
from veilmq.wire.sqs.reply import Reply
from veilmq.wire.sqs.shapes import Shape

VERSION = "2012-11-05"

_QUEUE_URL = "QueueUrl"
_NO_QUEUE = "The specified queue does not exist for this wsdl version."
"""The service's words in this protocol."""


class Format(NamedTuple):
    """How replies are written: ``headers`` with the place of the request's id, and what writes a result or an error."""

    headers: bytes
    response: Callable[[str, Shape | None, str], bytes]
    error: Callable[[SqsError, str], bytes]


XML = Format(b"Content-Type: text/xml\r\nx-amzn-RequestId: %b\r\n", response_xml, error_xml)
"""What clients get."""

JSON = Format(b"Content-Type: application/json\r\nx-amzn-RequestId: %b\r\n", response_json, error_json)
"""What they get for a GET that accepts JSON and nothing else."""


class _Row(NamedTuple):
    request: type[Shape]
    read: Callable[[Tree], dict[str, Any]]
    plan: Callable[[Any, RequestContext], Plan]
    about_a_queue: bool
    anywhere: bool  # also valid at the URL of a queue


def _row(action: Action) -> _Row:
    fields = msgspec.structs.fields(action.request)
    about_a_queue = any(field.encode_name == _QUEUE_URL for field in fields)
    anywhere = about_a_queue or action.name == "GetQueueUrl"
    return _Row(action.request, reader(action.request, action.name), action.plan, about_a_queue, anywhere)


_ROWS = {name: _row(action) for name, action in ACTIONS.items()}


class QueryCall(msgspec.Struct, frozen=True, gc=False):
    """A request that was understood; see ``call.Call``."""

    command: Command
    wait_s: int | None
    respond: Respond
    action: str
    written: Format

    def encode(self, result: Any) -> Reply:
        """Return the reply for the command's result or its ``VeilmqError``."""
        try:
            response = self.respond(result)
        except SqsError as error:
            return encode_error(error, self.written)
        identifier = request_id.new()
        body = self.written.response(self.action, response, identifier)
        return Reply(200, self.written.headers % identifier.encode(), body)


def decode(action: str | bytes, form: Form, context: RequestContext, written: Format = XML) -> QueryCall:
    """Return what ``form`` asks of ``action``; raises ``SqsError``, and nothing else, whatever the bytes are."""
    name = action if isinstance(action, str) else action.decode("ascii", "replace")
    row = _ROWS.get(name)
    if row is None:
        raise unknown_action(name)
    tree = parameters(form)
    _check_version(tree.get("Version", VERSION))
    members = row.read(tree)
    path = form.path.decode("latin-1")
    if path.strip("/"):
        if not row.anywhere:
            raise unknown_action(name)
        if row.about_a_queue:
            members.setdefault(_QUEUE_URL, path)
    plan = row.plan(_converted(members, row.request), context)
    return QueryCall(plan.command, plan.wait_s, plan.respond, name, written)


def encode_error(error: SqsError, written: Format = XML) -> Reply:
    """Return the reply for a request that was refused."""
    identifier = request_id.new()
    code = error.code
    if code is QUEUE_DOES_NOT_EXIST:
        error = SqsError(code, error.message.replace(NO_QUEUE, _NO_QUEUE, 1))
    return Reply(code.status, written.headers % identifier.encode(), written.error(error, identifier), code.name)


def _check_version(version: Node) -> None:
    if version != VERSION:
        raise SqsError(
            NO_SUCH_VERSION,
            f"The requested version ({shown(str(version))}) of service AmazonSQS does not exist; use {VERSION}.",
        )


def _converted(members: dict[str, Any], request: type[Shape]) -> Shape:
    try:
        return msgspec.convert(members, request)
    except msgspec.ValidationError as error:
        raise malformed(explain(error) or f"A parameter cannot be converted: {error}.") from None
