"""What a listing is asked for in headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.smq.asking import request
from veilmq.wire.smq import SmqError
from veilmq.wire.smq.request import Listing, next_marker, read_listing


def asked(**headers: str) -> Listing:
    """Return what a request with these ``x-mns-`` headers asks for."""
    named = {f"x-mns-{name.replace('_', '-')}": value for name, value in headers.items()}
    return read_listing(request("GET", "/queues", headers=named).headers)


def test_without_headers_it_is_all() -> None:
    """A thousand of them."""
    assert asked() == asked(prefix="", ret_number="", marker="", with_meta="")
    assert asked() == Listing(prefix="", after="", count=1_000, detailed=False)


def test_each_header_narrows_it_or_tells_more() -> None:
    """All four."""
    wanted = Listing(prefix="a", after="ab", count=2, detailed=True)
    assert asked(prefix="a", ret_number="2", marker="YWI=", with_meta="true") == wanted


@given(name=st.text(alphabet="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", min_size=1))
def test_a_marker_leads_on_from_the_last_name(name: str) -> None:
    """There is one where there is more."""
    marker = next_marker(name, more=True).removeprefix("<NextMarker>").removesuffix("</NextMarker>\n")
    assert asked(marker=marker).after == name
    assert next_marker(name, more=False) == ""


@pytest.mark.parametrize(
    "headers", [{"ret_number": "0"}, {"ret_number": "1001"}, {"marker": "?"}, {"marker": "/w=="}, {"with_meta": "1"}]
)
def test_what_cannot_be_is_refused(headers: dict[str, str]) -> None:
    """Numbers out of range, and markers that no page named."""
    with pytest.raises(SmqError):
        asked(**headers)
