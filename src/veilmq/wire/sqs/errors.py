"""The error codes of Amazon SQS, and which of them the errors of core become.

A code has the name of the error's shape (the JSON ``__type``, by which clients choose their exception class), the older
name in the Query protocol (the header ``x-amzn-query-error``, which the AWS SDKs show as the error code), the HTTP
status, and the fault. Names and statuses follow the service model of SQS and its API Reference ("Errors" of each
action, "Common Errors"). Errors that are not in the model come from AWS's server framework and have its namespace.
"""

import re
from dataclasses import dataclass

from veilmq.core import errors as core
from veilmq.core.limits import SQS_BATCH_ENTRIES_MAX, SQS_MESSAGE_ATTRIBUTES_MAX, SQS_TAGS_MAX

_SHOWN_CHARACTERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Code:
    """One error code; ``shape`` is its qualified name in JSON, ``query`` its name in the Query protocol."""

    shape: str
    query: str
    status: int = 400
    fault: str = "Sender"

    @property
    def name(self) -> str:
        return self.shape.partition("#")[2]


def _modelled(name: str, query: str = "", status: int = 400) -> Code:
    return Code(f"com.amazonaws.sqs#{name}", query or name, status)


def _framework(name: str, query: str, status: int = 400, fault: str = "Sender") -> Code:
    return Code(f"com.amazon.coral.service#{name}", query, status, fault)


QUEUE_DOES_NOT_EXIST = _modelled("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
QUEUE_NAME_EXISTS = _modelled("QueueNameExists", "QueueAlreadyExists")
QUEUE_DELETED_RECENTLY = _modelled("QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently")
PURGE_IN_PROGRESS = _modelled("PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403)
OVER_LIMIT = _modelled("OverLimit", status=403)
REQUEST_THROTTLED = _modelled("RequestThrottled", status=403)
RESOURCE_NOT_FOUND = _modelled("ResourceNotFoundException", status=404)
INVALID_ADDRESS = _modelled("InvalidAddress", status=404)
INVALID_ATTRIBUTE_NAME = _modelled("InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE = _modelled("InvalidAttributeValue")
INVALID_MESSAGE_CONTENTS = _modelled("InvalidMessageContents")
RECEIPT_HANDLE_IS_INVALID = _modelled("ReceiptHandleIsInvalid", status=404)
EMPTY_BATCH_REQUEST = _modelled("EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest")
TOO_MANY_ENTRIES = _modelled("TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest")
ENTRY_IDS_NOT_DISTINCT = _modelled("BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct")
INVALID_ENTRY_ID = _modelled("InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId")
BATCH_TOO_LONG = _modelled("BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong")
UNSUPPORTED_OPERATION = _modelled("UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation")
INVALID_PARAMETER_VALUE = _framework("InvalidParameterValueException", "InvalidParameterValue")
MISSING_PARAMETER = _framework("MissingRequiredParameterException", "MissingParameter")
SERIALIZATION = _framework("SerializationException", "SerializationException")
UNKNOWN_OPERATION = _framework("UnknownOperationException", "InvalidAction")
MALFORMED_INPUT = _framework("MalformedInputException", "MalformedInput")
MALFORMED_QUERY_STRING = _framework("MalformedQueryStringException", "MalformedQueryString", 404)
NO_SUCH_VERSION = _framework("NoSuchVersionException", "NoSuchVersion")
MISSING_AUTHENTICATION_TOKEN = _framework("MissingAuthenticationTokenException", "MissingAuthenticationToken", 403)
INCOMPLETE_SIGNATURE = _framework("IncompleteSignatureException", "IncompleteSignature")
INVALID_CLIENT_TOKEN_ID = _framework("UnrecognizedClientException", "InvalidClientTokenId", 403)
SIGNATURE_DOES_NOT_MATCH = _framework("InvalidSignatureException", "SignatureDoesNotMatch", 403)
EXPIRED_TOKEN = _framework("ExpiredTokenException", "ExpiredToken", 403)
REQUEST_EXPIRED = _framework("RequestExpiredException", "RequestExpired")
ACCESS_DENIED = _framework("AccessDeniedException", "AccessDenied", 403)
INTERNAL_FAILURE = _framework("InternalFailure", "InternalFailure", 500, "Receiver")
SERVICE_UNAVAILABLE = _framework("ServiceUnavailableException", "ServiceUnavailable", 503, "Receiver")

CODES: tuple[Code, ...] = tuple(value for value in globals().values() if isinstance(value, Code))


class SqsError(Exception):
    """An error reply; ``message``, for the user of the client, has the error and, unless it is plain, the remedy."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def truncated(text: str) -> str:
    """Return ``text`` of a client, shortened for an error message."""
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"


def invalid(message: str) -> SqsError:
    """Return the error for a parameter that breaks a rule."""
    return SqsError(INVALID_PARAMETER_VALUE, message)


def missing_parameter(name: str) -> SqsError:
    return SqsError(MISSING_PARAMETER, f"The request must contain the parameter {name}.")


def invalid_parameter(name: str, value: object, reason: str) -> SqsError:
    """Return the error for the member ``name`` whose ``value`` breaks the rule that ``reason`` states."""
    return invalid(f"Value {truncated(str(value))} for parameter {name} is invalid. Reason: {reason}")


def unknown_attribute(name: str) -> SqsError:
    return SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {truncated(name)}.")


def too_many_tags(queue: str) -> SqsError:
    return invalid(f"Too many tags added for queue {queue.partition('/')[2]}. A queue may have {SQS_TAGS_MAX}.")


def too_many_attributes(count: int | str, maximum: int = SQS_MESSAGE_ATTRIBUTES_MAX) -> SqsError:
    """Return the error for a message with ``count`` attributes, a number or a text like "more than 10"."""
    return invalid(f"Number of message attributes [{count}] exceeds the allowed maximum [{maximum}].")


def too_many_entries(count: int | str) -> SqsError:
    """Return the error for a batch of ``count`` entries, a number or a text like "more than 10"."""
    return SqsError(
        TOO_MANY_ENTRIES, f"Maximum number of entries per request are {SQS_BATCH_ENTRIES_MAX}. You have sent {count}."
    )


NO_SUCH_QUEUE = "The specified queue does not exist."
"""The text of SQS for a queue that does not exist, in the JSON protocol."""

_CORE_TEXT = "{error}"
_WAIT = "You must wait {error.pause_s} seconds after deleting a queue before you can create another with the same name."

# Actions make the errors whose text needs the request or a name of the protocol; these rows cover all other cases.
CORE_ERRORS: dict[type[core.VeilmqError], tuple[Code, str]] = {
    core.QueueNotFound: (QUEUE_DOES_NOT_EXIST, NO_SUCH_QUEUE),
    core.QueueExists: (QUEUE_NAME_EXISTS, _CORE_TEXT),
    core.QueueDeletedRecently: (QUEUE_DELETED_RECENTLY, _WAIT),
    core.PurgeInProgress: (
        PURGE_IN_PROGRESS,
        "Only one PurgeQueue operation on {name} is allowed every {error.pause_s} seconds.",
    ),
    core.SettingsConflict: (INVALID_ATTRIBUTE_VALUE, _CORE_TEXT),
    core.EditRefused: (INVALID_PARAMETER_VALUE, _CORE_TEXT),
    core.TooManyTags: (INVALID_PARAMETER_VALUE, "Too many tags: a queue may have {error.tags_max}."),
    core.DeadLetterQueueRefused: (INVALID_PARAMETER_VALUE, _CORE_TEXT),
    core.MessageTooLong: (
        INVALID_PARAMETER_VALUE,
        "One or more parameters are invalid. Reason: Message must be shorter than {error.bytes_max} bytes.",
    ),
    core.GroupMissing: (MISSING_PARAMETER, "The request must contain the parameter MessageGroupId."),
    core.DeduplicationIdMissing: (
        INVALID_PARAMETER_VALUE,
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
    ),
    core.ReceiptInvalid: (
        RECEIPT_HANDLE_IS_INVALID,
        "The input receipt handle is invalid. Use the one of the latest receive from this queue.",
    ),
    core.LeaseTooLong: (INVALID_PARAMETER_VALUE, _CORE_TEXT),
    core.NotADeadLetterQueue: (
        INVALID_PARAMETER_VALUE,
        "Source queue must be configured as a Dead Letter Queue. No queue names {name} as its dead-letter queue.",
    ),
    core.MoveTaskRunning: (
        INVALID_PARAMETER_VALUE,
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
    ),
    core.MoveTaskNotFound: (RESOURCE_NOT_FOUND, "Task does not exist."),
    core.DestinationRefused: (INVALID_PARAMETER_VALUE, _CORE_TEXT),
    core.ReceivesThrottled: (REQUEST_THROTTLED, _CORE_TEXT),
    core.StoreFull: (SERVICE_UNAVAILABLE, _CORE_TEXT),
    core.StoreUnavailable: (SERVICE_UNAVAILABLE, _CORE_TEXT),
    core.OutcomeUnknown: (SERVICE_UNAVAILABLE, _CORE_TEXT),
    core.ShuttingDown: (SERVICE_UNAVAILABLE, _CORE_TEXT),
    core.InternalError: (INTERNAL_FAILURE, _CORE_TEXT),
}
"""Error of core → its code and text; ``{name}`` is the name of its queue."""


def from_core(error: core.VeilmqError) -> SqsError:
    """Return ``error`` as a ``SqsError``; one without a row is a bug and becomes InternalFailure, without details."""
    code, text = CORE_ERRORS.get(type(error), (INTERNAL_FAILURE, str(core.InternalError())))
    return SqsError(code, text.format(error=error, name=getattr(error, "queue", "").partition("/")[2]))


# Conversion errors of msgspec, in the words of AWS's framework, with the location in the request.

_MISMATCH = re.compile(r"Expected `(?P<wanted>[^`|]+?)(?: \| null)?`, got `(?P<found>\w+)`(?: - at `\$\.(?P<at>.+)`)?")
_OUT_OF_RANGE = re.compile(
    r"(?:Expected `int` [<>]= -?[0-9]+|Integer value out of range|Number out of range)(?: - at `\$\.(?P<at>.+)`)?"
)
_FOUND = {
    "array": "Start of list found where not expected",
    "object": "Start of structure or map found where not expected",
    "str": "STRING_VALUE",
    "int": "NUMBER_VALUE",
    "float": "DECIMAL_VALUE",
    "bool": "BOOLEAN_VALUE",
    "null": "NULL_VALUE",
}
_WANTED = {
    "int": "an Integer",
    "str": "a String",
    "bytes": "a Blob",
    "bool": "a Boolean",
    "array": "a List",
    "object": "a Structure",
}


def conversion_error(error: Exception) -> str | None:
    """Return the text for msgspec's ``error``; ``None`` if it is not about the type or the range of a value."""
    if match := _OUT_OF_RANGE.fullmatch(str(error)):
        return f"NUMBER_VALUE can not be converted to an Integer, it is out of range{_location(match)}"
    match = _MISMATCH.fullmatch(str(error))
    if match is None:
        return None
    place = _location(match)
    found = _FOUND[match["found"]]
    if found.endswith("expected"):
        return found + place
    return f"{found} can not be converted to {_WANTED[match['wanted']]}{place}"


def _location(match: re.Match[str]) -> str:
    return f" (at {match['at']})" if match["at"] else ""
