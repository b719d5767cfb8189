"""Paging tokens."""

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.sqs.asking import UNHURRIED
from veilmq.wire.sqs import SqsError
from veilmq.wire.sqs.errors import INVALID_PARAMETER_VALUE
from veilmq.wire.sqs.paging import name_before, token_after


@UNHURRIED
@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_token_leads_back_to_its_name(name: str) -> None:
    """And is safe in a URL."""
    token = token_after(name)
    assert name_before(token) == name
    assert token.isascii()
    assert not set(token) & set("+/ ")


@pytest.mark.parametrize("token", [None, ""])
def test_no_token_is_the_first_page(token: str | None) -> None:
    """Nothing comes before it."""
    assert name_before(token) == ""


@pytest.mark.parametrize(
    "token", ["!", "a", "b3JkZXJz!", "b3JkZXJz\n", "b3Jk ZXJz", "é", urlsafe_b64encode(b"\xff").decode(), "===", "YR=="]
)
def test_a_token_that_we_did_not_make(token: str) -> None:
    """Is refused, with what to do."""
    with pytest.raises(SqsError, match="Invalid or expired next token; use the NextToken") as caught:
        name_before(token)
    assert caught.value.code is INVALID_PARAMETER_VALUE
