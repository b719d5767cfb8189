"""Errors of SMQ: their codes, statuses and texts, and which of them answers what."""

import inspect

import pytest

from veilmq.core import errors as core
from veilmq.core.limits import Range
from veilmq.wire.smq import errors as smq
from veilmq.wire.smq.errors import ANSWERS, CODES, Code, SmqError, from_core, from_sqs, invalid_argument, invalid_query
from veilmq.wire.sqs import errors as sqs
from veilmq.wire.sqs.errors import SqsError

STATUSES = {
    400: {
        "EndpointInvalid",
        "InvalidArgument",
        "InvalidAuthorizationHeader",
        "InvalidContentType",
        "InvalidDateHeader",
        "InvalidDegist",
        "InvalidQueryString",
        "InvalidQueueName",
        "InvalidRequestURL",
        "InvalidVersionHeader",
        "MalformedXML",
        "MissingAuthorizationHeader",
        "MissingDateHeader",
        "MissingReceiptHandle",
        "MissingVersionHeader",
        "MissingVisibilityTimeout",
        "QueueDeletedRecently",
        "QueueNameLengthError",
        "ReceiptHandleError",
        "SubscriptionNameInvalid",
        "SubscriptionNameLengthError",
        "TopicNameInvalid",
        "TopicNameLengthError",
    },
    403: {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"},
    404: {"MessageNotExist", "QueueNotExist", "SubscriptionNotExist", "TopicNotExist"},
    408: {"TimeExpired"},
    409: {"QueueAlreadyExist", "SubscriptionAlreadyExist", "TopicAlreadyExist"},
    429: {"TooManyRequests"},
    500: {"InternalError", "InternalServerError"},
}


def test_the_table_is_that_of_the_reference() -> None:
    """Every code with its status, once; none without a text."""
    assert len({code.name for code in CODES}) == len(CODES)
    found: dict[int, set[str]] = {}
    for code in CODES:
        found.setdefault(code.status, set()).add(code.name)
    assert found == STATUSES
    assert all(code.text.endswith(".") for code in CODES)


TOLD: list[tuple[core.VeilmqError, Code, str]] = [
    (core.QueueNotFound("a/q"), smq.QUEUE_NOT_EXIST, "The queue name you provided is not exist."),
    (core.QueueExists("a/q", "delay_s"), smq.QUEUE_ALREADY_EXIST, "The queue you want to create is already exist."),
    (core.QueueDeletedRecently("a/q", 60), smq.QUEUE_DELETED_RECENTLY, "deleted recently."),
    (core.SettingsConflict("fifo", "Leave it."), smq.INVALID_ARGUMENT, "published schema, cause by Leave it."),
    (core.DeadLetterQueueRefused("a/d", "It is gone."), smq.INVALID_ARGUMENT, "cause by It is gone."),
    (core.MessageTooLong(1_024), smq.INVALID_ARGUMENT, "The value of MessageBody should between 1 and 1024 bytes."),
    (core.BodyUnreadable(), smq.INVALID_ARGUMENT, "cause by The body is no base64"),
    (core.GroupMissing(), smq.INVALID_ARGUMENT, "cause by MessageGroupId"),
    (core.ReceiptInvalid(), smq.RECEIPT_HANDLE_ERROR, "The receipt handle you provide is not valid."),
    (core.ReceivesThrottled(3), smq.TOO_MANY_REQUESTS, "The request is denied by cluster flow limiter"),
    (core.TopicNotFound("a/t"), smq.TOPIC_NOT_EXIST, "The topic you provided does not exist."),
    (core.TopicExists("a/t", "x"), smq.TOPIC_ALREADY_EXIST, "is already exist."),
    (core.SubscriptionNotFound("a/t", "s"), smq.SUBSCRIPTION_NOT_EXIST, "does not exist."),
    (core.SubscriptionExists("a/t", "s", "x"), smq.SUBSCRIPTION_ALREADY_EXIST, "is already exist."),
    (core.TooManySubscriptions(100), smq.INVALID_ARGUMENT, "cause by A topic may have 100 subscriptions"),
    (core.EndpointRefused("http://x", "it is no address"), smq.ENDPOINT_INVALID, "it is no address."),
    (core.StoreFull(), smq.INTERNAL_SERVER_ERROR, "Interal error. The disk that keeps the messages"),
    (core.StoreUnavailable(), smq.INTERNAL_SERVER_ERROR, "nothing was done. Try again."),
    (core.OutcomeUnknown(), smq.INTERNAL_SERVER_ERROR, "it may have happened. Try again."),
    (core.ShuttingDown(), smq.INTERNAL_SERVER_ERROR, "Interal error. The server is shutting down; try again."),
    (core.InternalError(), smq.INTERNAL_ERROR, "Interal error."),
]


@pytest.mark.parametrize("told", TOLD, ids=lambda told: type(told[0]).__name__)
def test_an_error_of_core_is_answered_with_its_code(told: tuple[core.VeilmqError, Code, str]) -> None:
    """In the words that SMQ has for it."""
    error, code, text = told
    answer = from_core(error)
    assert answer.code is code
    assert text in answer.message == str(answer)


def test_every_row_is_tested_and_every_error_of_topics_has_a_row() -> None:
    """Errors of what SMQ cannot ask for have none."""
    kinds = {
        kind
        for name, kind in inspect.getmembers(core, inspect.isclass)
        if name.startswith("Endpoint") or "Topic" in name or "Subscription" in name
    }
    assert len(kinds) == 6
    assert {type(error) for error, _, _ in TOLD} == set(ANSWERS)
    assert kinds <= set(ANSWERS)


def test_an_error_that_no_row_knows_says_nothing_of_itself() -> None:
    """It is a defect of ours."""
    answer = from_core(core.VeilmqError("secret"))
    assert (answer.code, answer.message) == (smq.INTERNAL_ERROR, "Interal error.")


def test_what_refuses_requests_of_any_protocol_has_a_code_here() -> None:
    """One that SMQ has no code for keeps its own, as the faults of a test have."""
    assert from_sqs(SqsError(sqs.SERVICE_UNAVAILABLE, "x")).code is smq.INTERNAL_SERVER_ERROR
    other = from_sqs(SqsError(sqs.OVER_LIMIT, "Too many."))
    assert (other.code.name, other.code.status, other.message) == ("OverLimit", 403, "Too many.")


def test_texts_with_a_place_for_what_is_wrong() -> None:
    """As much of it as an error repeats."""
    assert smq.out_of_range("X", Range(1, 2, 1)).message == "The value of X should between 1 and 2."
    assert smq.out_of_range("X", Range(1, 2, 1), "bytes").message == "The value of X should between 1 and 2 bytes."
    assert invalid_query("x").message == 'Http request URL contains invalid querystring item "x".'
    assert len(invalid_argument("x" * 9_999).message) < 400
    assert SmqError(smq.MALFORMED_XML).message == "The XML you provided was not well-formed."
