"""Paging tokens."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.sqs.asking import CONTEXT, UNHURRIED
from veilmq.wire.exchange import RequestContext
from veilmq.wire.sqs.errors import INVALID_PARAMETER_VALUE, SqsError
from veilmq.wire.sqs.names import Listing

LISTING = Listing("ListQueues", "jobs-", CONTEXT)


@UNHURRIED
@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_token_leads_back_to_its_name(name: str) -> None:
    """And is safe in a URL."""
    token = LISTING.token_after(name)
    assert LISTING.name_before(token) == name
    assert token.isascii()
    assert not set(token) & set("+/ ")


@pytest.mark.parametrize("token", [None, ""])
def test_no_token_is_the_first_page(token: str | None) -> None:
    """Nothing comes before it."""
    assert LISTING.name_before(token) == ""


@pytest.mark.parametrize(
    "token", ["!", "a", "b3JkZXJz", "é", urlsafe_b64encode(b"\xff").decode(), "===", LISTING.token_after("")]
)
def test_a_token_that_we_did_not_make(token: str) -> None:
    """Is refused, with what to do."""
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


@pytest.mark.parametrize(
    "other",
    [
        Listing("ListDeadLetterSourceQueues", "jobs-", CONTEXT),
        Listing("ListQueues", "jobs", CONTEXT),
        Listing("ListQueues", "jobs-", msgspec.structs.replace(CONTEXT, account="111111111111")),
        Listing("ListQueues", "jobs-", msgspec.structs.replace(CONTEXT, token_key=bytes(32))),
    ],
    ids=["action", "filter", "account", "server"],
)
def test_a_token_of_another_listing(other: Listing) -> None:
    """Is refused: it leads on only where it came from."""
    with pytest.raises(SqsError):
        LISTING.name_before(other.token_after("orders"))


def test_another_connection_reads_it() -> None:
    """The way to the server does not matter, and the key is the process's where nobody gave one."""
    one, other = (Listing("ListQueues", "", RequestContext(base_url=url)) for url in ("http://a", "https://b"))
    assert other.name_before(one.token_after("orders")) == "orders"
