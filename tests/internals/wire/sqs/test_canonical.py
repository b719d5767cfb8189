"""Canonical forms: each way to write a path, a query and a header has one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.sqs.asking import UNHURRIED
from veilmq.wire.sqs.signatures import _paths, canonical_path, canonical_query, query_pairs, single_spaced


@pytest.mark.parametrize(
    ("raw", "form"),
    [
        (b"", b"/"),
        (b"/", b"/"),
        (b"//", b"/"),
        (b"/./", b"/"),
        (b"/..", b"/"),
        (b"/a/../b/", b"/b/"),
        (b"/a//b/./c", b"/a/b/c"),
        (b"/a b", b"/a%20b"),
        (b"/a%20b", b"/a%2520b"),
        (b"/a~_-.b", b"/a~_-.b"),
        (b"/\xc3\xbc", b"/%C3%BC"),
    ],
)
def test_a_path_is_freed_of_dots_and_encoded_once_more(raw: bytes, form: bytes) -> None:
    """The second time it is remembered."""
    assert (canonical_path(raw), canonical_path(raw)) == (form, form)


def test_long_paths_are_not_remembered() -> None:
    """A thousand of the longest would take some thirty MiB."""
    assert canonical_path(b"/" + b"a" * 600) == b"/" + b"a" * 600
    assert max(map(len, _paths)) <= 512


@pytest.mark.parametrize(
    ("raw", "form"),
    [
        (b"", b""),
        (b"&&", b""),
        (b"a", b"a="),
        (b"b=2&a=1", b"a=1&b=2"),
        (b"a=2&a=1", b"a=1&a=2"),
        (b"a-b=1&a=2", b"a=2&a-b=1"),
        (b"A=1&a=1&B=1", b"A=1&B=1&a=1"),
        (b"a=x+y&b=x%20y", b"a=x%20y&b=x%20y"),
        (b"a=%2b&b=%2B", b"a=%2B&b=%2B"),
        (b"a=1=2", b"a=1%3D2"),
        (b"a=/~", b"a=%2F~"),
    ],
)
def test_a_query_is_decoded_encoded_and_sorted(raw: bytes, form: bytes) -> None:
    assert canonical_query(query_pairs(raw)) == form


@UNHURRIED
@given(st.binary(max_size=30))
def test_a_canonical_query_is_its_own_canonical_form(raw: bytes) -> None:
    """So no two requests that mean different things have one form."""
    form = canonical_query(query_pairs(raw))
    assert canonical_query(query_pairs(form)) == form
    assert sorted(query_pairs(form)) == sorted(query_pairs(raw))


def test_white_space_of_a_header_counts_once_and_only_inside() -> None:
    assert single_spaced(b"  a \t b  ") == b"a b"
