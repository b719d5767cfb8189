"""Queue names, URLs and ARNs."""

import uuid

import pytest

from tests.wire.sqs.asking import CONTEXT, ID, ID_TEXT, QUEUE, URL, refusal
from veilmq.wire.sqs import RequestContext, SqsError, errors, names
from veilmq.wire.sqs.names import id_text, new_queue, queue_arn, queue_of, queue_url


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "https://sqs.us-east-1.amazonaws.com/000000000000/orders",
        "http://elsewhere:1/a/b/000000000000/orders/",
        "http://[::1]:9324/000000000000/orders?x=y#z",
        "/000000000000/orders",
        "000000000000/orders",
        "orders",
    ],
)
def test_only_the_path_of_a_url_counts(url: str) -> None:
    """Its last two parts; a bare name is a queue of the caller. The second look says the same as the first."""
    assert queue_of(url, CONTEXT) == queue_of(url, CONTEXT) == QUEUE


def test_a_bare_name_belongs_to_the_caller_of_each_request() -> None:
    """It is not remembered for another caller."""
    other = RequestContext(base_url=CONTEXT.base_url, account="111111111111")
    assert queue_of("orders", CONTEXT) == "000000000000/orders"
    assert queue_of("orders", other) == "111111111111/orders"
    assert queue_of(URL, other) == QUEUE


@pytest.mark.parametrize(
    "url",
    ["/", "http://host", "http://host/", "http://host/orders", "http://host/a b/c", "http://[::1/a/b", "é", "a//b"],
)
def test_bad_addresses(url: str) -> None:
    """Are refused as addresses."""
    with pytest.raises(SqsError, match="is not valid for this endpoint") as caught:
        queue_of(url, CONTEXT)
    assert caught.value.code is errors.INVALID_ADDRESS


def test_what_is_remembered_is_bounded() -> None:
    """In number and in length."""
    for number in range(5_000):
        queue_of(f"http://h/000000000000/q{number}", CONTEXT)
    queue_of(f"http://{'h' * 600}/000000000000/q", CONTEXT)
    assert len(names._remembered) <= 4_096
    assert max(map(len, names._remembered)) <= 512


def test_urls_and_arns() -> None:
    """Are made of the caller's way to us and of the queue's name."""
    assert queue_url(QUEUE, CONTEXT) == URL
    context = RequestContext(base_url="https://h", region="eu-west-1")
    assert queue_url(QUEUE, context) == "https://h/000000000000/orders"
    assert queue_arn(QUEUE, context) == "arn:aws:sqs:eu-west-1:000000000000:orders"


@pytest.mark.parametrize("name", ["a", "A-z_09", "x" * 80])
def test_good_names_of_new_queues(name: str) -> None:
    """1 to 80 letters, digits, hyphens and underscores."""
    assert new_queue(name, CONTEXT) == f"000000000000/{name}"


@pytest.mark.parametrize("name", ["a.b", "a b", "é", "a/b", "x" * 81, "a\n", "٣"])
def test_bad_names_of_new_queues(name: str) -> None:
    """Are refused with the rule."""
    error = refusal("CreateQueue", QueueName=name)
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert "1 to 80 in length" in error.message


def test_the_text_of_an_id() -> None:
    """Is that of a UUID."""
    assert id_text(ID) == ID_TEXT == str(uuid.UUID(bytes=ID))
