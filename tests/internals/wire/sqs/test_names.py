"""Names on the wire, paging tokens; callers and their keys; ids."""

import string
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.sqs.requests import CONTEXT, ID, ID_TEXT, QUEUE, UNHURRIED, URL, refusal
from veilmq.core.messages import decode_properties
from veilmq.wire.exchange import SENDER_ID, AccessKey, RequestContext, caller_named, id_text, root_arn
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import INVALID_PARAMETER_VALUE, SqsError
from veilmq.wire.sqs.members import CHARACTERS_MAX, checked_id, sequence_text
from veilmq.wire.sqs.names import Listing, is_fifo, new_queue, queue_arn, queue_of, queue_of_arn, queue_url


@pytest.mark.parametrize("url", [
    URL, "https://sqs.us-east-1.amazonaws.com/000000000000/orders", "http://elsewhere:1/a/b/000000000000/orders/",
    "http://[::1]:9324/000000000000/orders?x=y#z", "/000000000000/orders", "000000000000/orders", "orders",
])  # fmt: skip
def test_only_the_path_of_a_url_counts(url: str) -> None:
    """Its last two parts; a bare name is a queue of the caller. The second look says the same as the first."""
    assert queue_of(url, CONTEXT) == queue_of(url, CONTEXT) == QUEUE


def test_a_bare_name_belongs_to_the_caller_of_each_request() -> None:
    other = RequestContext(base_url=CONTEXT.base_url, account="111111111111")
    assert queue_of("orders", CONTEXT) == "000000000000/orders"
    assert queue_of("orders", other) == "111111111111/orders"
    assert queue_of(URL, other) == QUEUE


def test_a_url_names_the_same_queue_in_each_region() -> None:
    """Its own region counts, or the server's: so it is remembered; a bare name is of the request's region."""
    here = RequestContext(base_url="http://h", by_region=True)
    there = msgspec.structs.replace(here, account="000000000000@eu-west-1")
    for context in (there, here, there):
        assert queue_of("http://h/000000000000/orders", context) == QUEUE
        assert queue_of("http://h/eu-west-1/000000000000/orders", context) == "000000000000@eu-west-1/orders"
    assert set(here.queues.values()) == {QUEUE, "000000000000@eu-west-1/orders"}
    assert [queue_of("orders", context) for context in (here, there)] == [QUEUE, "000000000000@eu-west-1/orders"]


@pytest.mark.parametrize(
    "url",
    ["/", "http://host", "http://host/", "http://host/orders", "http://host/a b/c", "http://[::1/a/b", "é", "a//b"],
)
def test_bad_addresses(url: str) -> None:
    with pytest.raises(SqsError, match="is not valid for this endpoint") as caught:
        queue_of(url, CONTEXT)
    assert caught.value.code is errors.INVALID_ADDRESS


def test_what_is_remembered_is_bounded() -> None:
    for number in range(5_000):
        queue_of(f"http://h/000000000000/q{number}", CONTEXT)
    queue_of(f"http://{'h' * 600}/000000000000/q", CONTEXT)
    assert len(CONTEXT.queues) <= 4_096
    assert max(len(url or "") for url in CONTEXT.queues) <= 512


def test_urls_and_arns() -> None:
    assert queue_url(QUEUE, CONTEXT) == URL
    context = RequestContext(base_url="https://h", region="eu-west-1")
    assert queue_url(QUEUE, context) == "https://h/000000000000/orders"
    assert queue_arn(QUEUE, context) == "arn:aws:sqs:eu-west-1:000000000000:orders"


@pytest.mark.parametrize("name", ["a", "A-z_09", "x" * 80])
def test_good_names_of_new_queues(name: str) -> None:
    assert new_queue(name, CONTEXT) == f"000000000000/{name}"


@pytest.mark.parametrize("name", ["a.b", "a b", "é", "a/b", "x" * 81, "a\n", "٣"])
def test_bad_names_of_new_queues(name: str) -> None:
    error = refusal("CreateQueue", QueueName=name)
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert "1 to 80 in length" in error.message


@pytest.mark.parametrize("name", ["a", "A-z_09", "x" * 75])
def test_good_names_of_new_fifo_queues(name: str) -> None:
    queue = new_queue(name + ".fifo", CONTEXT, fifo=True)
    assert queue == f"000000000000/{name}.fifo"
    assert is_fifo(queue)
    assert not is_fifo(new_queue(name, CONTEXT))


@pytest.mark.parametrize("name", ["orders", "orders.fifo", "x" * 80, "x" * 75 + ".fifo"])
def test_an_arn_leads_back_to_its_queue(name: str) -> None:
    queue = f"111111111111/{name}"
    assert queue_of_arn(queue_arn(queue, CONTEXT), CONTEXT) == queue


@pytest.mark.parametrize("arn", [
    "", "orders", "arn:aws:sqs:us-east-1:000000000000", "arn:aws:sqs:us-east-1:000000000000:",
    "arn:aws:sqs:us-east-1:000000000000:a.b", "arn:aws:sqs:us-east-1:000000000000:a.fifo.fifo",
    "arn:aws:sqs:us-east-1:000000000000:a:b", "arn:aws:sqs:us-east-1:000000000000:a\n",
    "arn:aws:sqs:us-east-1:00000000000:a", "arn:aws:sqs:us-east-1:٠٠٠٠٠٠٠٠٠٠٠٠:a",
    "arn:aws:sqs:eu-west-1:000000000000:a", "arn:aws:sqs::000000000000:a", "arn:aws:sns:us-east-1:000000000000:a",
    "arn:aws:sqs:us-east-1:000000000000:" + "x" * 257, "arn:aws:sqs:us-east-1:000000000000:" + "x" * 252 + ".fifo", URL,
])  # fmt: skip
def test_what_is_no_arn_of_a_queue_here(arn: str) -> None:
    assert queue_of_arn(arn, CONTEXT) is None


def test_the_text_of_an_id() -> None:
    assert id_text(ID) == ID_TEXT == str(uuid.UUID(bytes=ID))


# Paging tokens.

LISTING = Listing("ListQueues", "jobs-", CONTEXT)


@UNHURRIED
@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_token_leads_back_to_its_name(name: str) -> None:
    token = LISTING.token_after(name)
    assert LISTING.name_before(token) == name
    assert token.isascii()
    assert not set(token) & set("+/ ")


@pytest.mark.parametrize("token", [None, ""])
def test_no_token_is_the_first_page(token: str | None) -> None:
    assert LISTING.name_before(token) == ""


@pytest.mark.parametrize(
    "token", ["!", "a", "b3JkZXJz", "é", urlsafe_b64encode(b"\xff").decode(), "===", LISTING.token_after("")]
)
def test_a_token_that_we_did_not_make(token: str) -> None:
    with pytest.raises(SqsError, match="Invalid or expired next token; use the NextToken") as caught:
        LISTING.name_before(token)
    assert caught.value.code is INVALID_PARAMETER_VALUE


@UNHURRIED
@given(st.integers(min_value=0), st.integers(1, 255))
def test_a_token_with_one_byte_changed(place: int, bits: int) -> None:
    """Is none of ours, whichever byte it is."""
    data = bytearray(urlsafe_b64decode(LISTING.token_after("orders")))
    data[place % len(data)] ^= bits
    with pytest.raises(SqsError):
        LISTING.name_before(urlsafe_b64encode(data).decode())


@pytest.mark.parametrize("other", [
    Listing("ListDeadLetterSourceQueues", "jobs-", CONTEXT), Listing("ListQueues", "jobs", CONTEXT),
    Listing("ListQueues", "jobs-", msgspec.structs.replace(CONTEXT, account="111111111111")),
    Listing("ListQueues", "jobs-", msgspec.structs.replace(CONTEXT, token_key=bytes(32))),
], ids=["action", "filter", "account", "server"])  # fmt: skip
def test_a_token_of_another_listing(other: Listing) -> None:
    with pytest.raises(SqsError):
        LISTING.name_before(other.token_after("orders"))


def test_another_connection_reads_it() -> None:
    """The way to the server does not matter, and the key is the process's where nobody gave one."""
    one, other = (Listing("ListQueues", "", RequestContext(base_url=url)) for url in ("http://a", "https://b"))
    assert other.name_before(one.token_after("orders")) == "orders"


# Callers and their keys, and the ids that clients give.

ACCOUNT = "111122223333"


def test_an_account_is_its_own_root() -> None:
    root = caller_named(ACCOUNT)
    assert root.is_root
    assert root.arn == root_arn(ACCOUNT) == "arn:aws:iam::111122223333:root"
    assert root.sender_id == ACCOUNT


def test_a_user_has_an_id_of_its_own_for_ever() -> None:
    alice = caller_named(ACCOUNT, "alice")
    assert not alice.is_root
    assert alice.arn == "arn:aws:iam::111122223333:user/alice"
    assert alice.sender_id == "AIDADGLAF6RBMIIBBOI5L"
    assert (
        len({caller_named(*who).sender_id for who in ((ACCOUNT, "alice"), (ACCOUNT, "bob"), ("1" * 12, "alice"))}) == 3
    )


@pytest.mark.parametrize("user", ["", "alice"])
def test_what_a_message_carries_of_its_sender(user: str) -> None:
    who = caller_named(ACCOUNT, user)
    carried = decode_properties(who.sent)
    assert carried.system == {SENDER_ID: who.sender}
    assert who.sender.text == who.sender_id
    assert carried.attributes == {}


def test_a_key_shows_whose_it_is_and_nothing_else() -> None:
    key = AccessKey(id="AKID", secret="hush", session_token="hushed", caller=caller_named(ACCOUNT, "alice"))
    assert repr(key) == "AccessKey(id='AKID', caller='arn:aws:iam::111122223333:user/alice')"
    assert "hush" not in str(key) + f"{key}"


# The ids that clients give, and sequence numbers.


@pytest.mark.parametrize("name", list(CHARACTERS_MAX))
def test_what_an_id_may_have(name: str) -> None:
    """Every letter, digit and punctuation of ASCII, 128 of them; or it is not there."""
    signs = string.ascii_letters + string.digits + string.punctuation
    for value in (None, "a", signs, "x" * 128):
        assert checked_id(name, value) == value


@pytest.mark.parametrize("name", list(CHARACTERS_MAX))
@pytest.mark.parametrize("value", ["", " ", "a b", "é", "a\n", "\x7f", "x" * 129])
def test_what_an_id_may_not_have(name: str, value: str) -> None:
    with pytest.raises(SqsError, match="can only include alphanumeric and punctuation") as caught:
        checked_id(name, value)
    assert caught.value.code is errors.INVALID_PARAMETER_VALUE


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_sequence_numbers_have_twenty_digits_in_the_order_of_the_numbers(one: int, other: int) -> None:
    texts = [sequence_text(one), sequence_text(other)]
    assert all(text is not None and len(text) == 20 and text.isdigit() for text in texts)
    assert sorted(str(text) for text in texts) == [sequence_text(number) for number in sorted([one, other])]


def test_a_standard_queue_has_no_sequence_numbers() -> None:
    assert sequence_text(None) is None
