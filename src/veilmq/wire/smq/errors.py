"""The error codes of SMQ, and which of them the errors of core and of the shared server code become.

Codes, statuses and texts are those of the reference, section 7, including its English: SDKs branch on the code, and
users search for the text. Details (which member, which range) are in the format that the texts have for them.
"""

from dataclasses import dataclass

from veilmq.core import errors as core
from veilmq.wire.sqs import errors as sqs
from veilmq.wire.sqs.errors import truncated


@dataclass(frozen=True, slots=True)
class Code:
    """One error code; ``text`` is its default message."""

    name: str
    status: int
    text: str


ACCESS_DENIED = Code(
    "AccessDenied", 403, "The OwnerId that your Access Key Id associated to is forbidden for this operation."
)
INVALID_ACCESS_KEY_ID = Code("InvalidAccessKeyId", 403, "The AccessKey Id you provided is not exist.")
SIGNATURE_DOES_NOT_MATCH = Code(
    "SignatureDoesNotMatch",
    403,
    "The request signature we calculated does not match the signature you provided. Check your key and signing method.",
)
INTERNAL_ERROR = Code("InternalError", 500, "Interal error.")
INTERNAL_SERVER_ERROR = Code("InternalServerError", 500, "Interal error.")
INVALID_AUTHORIZATION_HEADER = Code("InvalidAuthorizationHeader", 400, "The Authorization header format is invalid.")
MISSING_AUTHORIZATION_HEADER = Code("MissingAuthorizationHeader", 400, "Authorization header is required.")
INVALID_DATE_HEADER = Code("InvalidDateHeader", 400, "The Date header format is invalid.")
MISSING_DATE_HEADER = Code("MissingDateHeader", 400, "Date header is required.")
MISSING_VERSION_HEADER = Code("MissingVersionHeader", 400, "x-mns-version header is required.")
INVALID_VERSION_HEADER = Code("InvalidVersionHeader", 400, "The x-mns-version header is invalid, use 2015-06-06.")
INVALID_CONTENT_TYPE = Code("InvalidContentType", 400, "The Content-Type header is invalid, use text/xml.")
TIME_EXPIRED = Code("TimeExpired", 408, "The http request you sent is expired.")
INVALID_DIGEST = Code("InvalidDegist", 400, "The Content-MD5 you specified is invalid.")
INVALID_REQUEST_URL = Code("InvalidRequestURL", 400, "Http request URL format invalid.")
INVALID_QUERY_STRING = Code("InvalidQueryString", 400, "Http request URL contains invalid querystring item.")
MALFORMED_XML = Code("MalformedXML", 400, "The XML you provided was not well-formed.")
INVALID_ARGUMENT = Code("InvalidArgument", 400, "The XML you provided did not validate against our published schema.")
MISSING_RECEIPT_HANDLE = Code("MissingReceiptHandle", 400, "ReceiptHandle is required.")
MISSING_VISIBILITY_TIMEOUT = Code("MissingVisibilityTimeout", 400, "VisibilityTimeout is required.")
RECEIPT_HANDLE_ERROR = Code("ReceiptHandleError", 400, "The receipt handle you provide is not valid.")
MESSAGE_NOT_EXIST = Code("MessageNotExist", 404, "Message not exist.")
QUEUE_NOT_EXIST = Code("QueueNotExist", 404, "The queue name you provided is not exist.")
QUEUE_ALREADY_EXIST = Code("QueueAlreadyExist", 409, "The queue you want to create is already exist.")
QUEUE_DELETED_RECENTLY = Code("QueueDeletedRecently", 400, "The queue you want to create is deleted recently.")
INVALID_QUEUE_NAME = Code(
    "InvalidQueueName",
    400,
    "The queue name you provided is invalid. QueueName should start with alpha and contain only alpha, digit or - .",
)
QUEUE_NAME_LENGTH_ERROR = Code("QueueNameLengthError", 400, "Queue name length should between 1 and 256.")
TOO_MANY_REQUESTS = Code("TooManyRequests", 429, "The request is denied by cluster flow limiter for too many requests.")
TOPIC_NOT_EXIST = Code("TopicNotExist", 404, "The topic you provided does not exist.")
TOPIC_ALREADY_EXIST = Code("TopicAlreadyExist", 409, "The topic you want to create is already exist.")
TOPIC_NAME_LENGTH_ERROR = Code("TopicNameLengthError", 400, "Topic name length should between 1 and 255.")
TOPIC_NAME_INVALID = Code(
    "TopicNameInvalid",
    400,
    "The topic name you provided is invalid. TopicName should start with alpha and contain only alpha, digit or - .",
)
SUBSCRIPTION_NOT_EXIST = Code("SubscriptionNotExist", 404, "The subscription you provided does not exist.")
SUBSCRIPTION_ALREADY_EXIST = Code(
    "SubscriptionAlreadyExist", 409, "The subscription you want to create is already exist."
)
SUBSCRIPTION_NAME_LENGTH_ERROR = Code(
    "SubscriptionNameLengthError", 400, "Subscription name length should between 1 and 255."
)
SUBSCRIPTION_NAME_INVALID = Code(
    "SubscriptionNameInvalid",
    400,
    "The subscription name you provided is invalid. "
    "SubscriptionName should start with alpha and contain only alpha, digit or - .",
)
ENDPOINT_INVALID = Code("EndpointInvalid", 400, "The endpoint you provided is invalid.")

CODES: tuple[Code, ...] = tuple(value for value in globals().values() if isinstance(value, Code))
"""All codes of this package."""


class SmqError(Exception):
    """An error reply; ``message``, by default the text of the code, is for the user of the client."""

    def __init__(self, code: Code, message: str = "") -> None:
        self.code = code
        self.message = message or code.text
        super().__init__(self.message)


def invalid_argument(cause: str) -> SmqError:
    """Return the error for an invalid part of the request; ``cause`` names it and the remedy."""
    return SmqError(INVALID_ARGUMENT, f"{INVALID_ARGUMENT.text[:-1]}, cause by {truncated(cause)}.")


def invalid_query(name: str) -> SmqError:
    return SmqError(INVALID_QUERY_STRING, f'{INVALID_QUERY_STRING.text[:-1]} "{truncated(name)}".')


_CAUSE = invalid_argument("{cause}").message
_NO_GROUP = invalid_argument("MessageGroupId: a FIFO queue needs one for each message").message
_UNAVAILABLE = INTERNAL_SERVER_ERROR.text + " {error}"

# Routes make the errors whose text needs the request; these rows cover all other cases.
CORE_ERRORS: dict[type[core.VeilmqError], tuple[Code, str]] = {
    core.QueueNotFound: (QUEUE_NOT_EXIST, ""),
    core.QueueExists: (QUEUE_ALREADY_EXIST, ""),
    core.QueueDeletedRecently: (QUEUE_DELETED_RECENTLY, ""),
    core.SettingsConflict: (INVALID_ARGUMENT, _CAUSE),
    core.DeadLetterQueueRefused: (INVALID_ARGUMENT, _CAUSE),
    core.MessageTooLong: (INVALID_ARGUMENT, "The value of MessageBody should between 1 and {error.bytes_max} bytes."),
    core.BodyUnreadable: (INVALID_ARGUMENT, _CAUSE),
    core.GroupMissing: (INVALID_ARGUMENT, _NO_GROUP),
    core.ReceiptInvalid: (RECEIPT_HANDLE_ERROR, ""),
    core.ReceivesThrottled: (TOO_MANY_REQUESTS, ""),
    core.TopicNotFound: (TOPIC_NOT_EXIST, ""),
    core.TopicExists: (TOPIC_ALREADY_EXIST, ""),
    core.SubscriptionNotFound: (SUBSCRIPTION_NOT_EXIST, ""),
    core.SubscriptionExists: (SUBSCRIPTION_ALREADY_EXIST, ""),
    core.TooManySubscriptions: (INVALID_ARGUMENT, _CAUSE),
    core.EndpointRefused: (ENDPOINT_INVALID, ENDPOINT_INVALID.text + " {error}"),
    core.StoreFull: (INTERNAL_SERVER_ERROR, _UNAVAILABLE),
    core.StoreUnavailable: (INTERNAL_SERVER_ERROR, _UNAVAILABLE),
    core.OutcomeUnknown: (INTERNAL_SERVER_ERROR, _UNAVAILABLE),
    core.ShuttingDown: (INTERNAL_SERVER_ERROR, _UNAVAILABLE),
    core.InternalError: (INTERNAL_ERROR, ""),
}
"""Error of core → its code and text (empty: that of the code)."""

SQS_ERRORS: dict[sqs.Code, Code] = {
    sqs.ACCESS_DENIED: ACCESS_DENIED,
    sqs.INTERNAL_FAILURE: INTERNAL_ERROR,
    sqs.SERVICE_UNAVAILABLE: INTERNAL_SERVER_ERROR,
}
"""Code of an ``SqsError``, which the shared server code raises → the code here."""

STATUS_ERRORS: dict[int, Code] = {403: ACCESS_DENIED, 413: INVALID_ARGUMENT}
"""HTTP status of a request that was refused before decoding → its code; for others, InvalidRequestURL."""


def from_core(error: core.VeilmqError) -> SmqError:
    """Return ``error`` as a ``SmqError``; one without a row is a bug and becomes InternalError without details."""
    code, text = CORE_ERRORS.get(type(error), (INTERNAL_ERROR, ""))
    return SmqError(code, text.format(error=error, cause=truncated(str(error).rstrip("."))))
