"""Parameters become a tree of their names, with bounded work, or are refused."""

import tracemalloc
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.sqs.asking import UNHURRIED
from veilmq.core.limits import HTTP_BODY_BYTES_MAX, QUERY_DEPTH_MAX, QUERY_PARAMETERS_MAX
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.query import Form, action_of, form_of, parameters


def form(body: bytes, *, query: bytes = b"") -> Form:
    """Return a form that was posted to the root of the server."""
    return Form(b"/", query, body)


def refusal(read: Form) -> SqsError:
    """Return the error with which ``read`` is refused."""
    with pytest.raises(SqsError) as caught:
        parameters(read)
    return caught.value


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", b"/", b""),
        (b"/0/q?Action=x&a=?", b"/0/q", b"Action=x&a=?"),
        (b"/?a=b#c", b"/", b"a=b"),
        (b"?a", b"", b"a"),
        (b"http://host:9324/0/q?a=b", b"/0/q", b"a=b"),
        (b"http://host", b"", b""),
        (b"*", b"*", b""),
        (b"", b"", b""),
    ],
)
def test_a_target_has_a_path_and_a_query_string(target: bytes, path: bytes, query: bytes) -> None:
    """Also the whole URL that a proxy's client sends."""
    assert form_of(target, b"body") == Form(path, query, b"body")


@pytest.mark.parametrize(
    ("read", "action"),
    [
        (form(b"Action=A"), b"A"),
        (form(b"a=b&Action=A&c=d"), b"A"),
        (form(b"", query=b"Action=A"), b"A"),
        (form(b"Action=B", query=b"Action=A"), b"A"),
        (form(b"Action="), b""),
        (form(b"MyAction=A"), None),
        (form(b"action=A"), None),
        (form(b"Action"), None),
        (form(b""), None),
    ],
)
def test_the_action(read: Form, action: bytes | None) -> None:
    """In the query string, or else in the body."""
    assert action_of(read) == action


def test_names_become_a_tree() -> None:
    """Of the query string and of the body alike."""
    read = form(b"b.1.Name=x&b.1.Value=y&b.2=z&c=", query=b"a=1&b.3.Name=w")
    assert parameters(read) == {
        "a": "1",
        "b": {"1": {"Name": "x", "Value": "y"}, "2": "z", "3": {"Name": "w"}},
        "c": "",
    }


def test_what_has_no_sign_is_empty_and_what_is_empty_is_nothing() -> None:
    """As in any form."""
    assert parameters(form(b"&a&&b=&c=d=e&")) == {"a": "", "b": "", "c": "d=e"}


@pytest.mark.parametrize("twice", [b"a=b&a=b", b"a.1=b&a.1=b"])
def test_the_same_twice_is_once(twice: bytes) -> None:
    """The query string and the form may both say it."""
    assert parameters(form(twice)) == parameters(form(twice.partition(b"&")[0]))


@pytest.mark.parametrize(
    ("contradiction", "name"), [(b"a=b&a=c", "a"), (b"a=b&a.1=c", "a.1"), (b"a.1=c&a=b", "a"), (b"a.1=c&a=", "a")]
)
def test_two_values_contradict_each_other(contradiction: bytes, name: str) -> None:
    """None of them is chosen, wherever they stand."""
    error = refusal(form(contradiction))
    assert error.code is errors.MALFORMED_INPUT
    assert error.message == f"The parameter {name} has two values; send it once."
    first, _, second = contradiction.partition(b"&")
    assert refusal(form(second, query=first)).message == error.message


@pytest.mark.parametrize("text", [b"a=%", b"a=%4", b"a=%4g", b"a=%%41", b"%=a", b"a=+%-1"])
def test_an_escape_needs_two_digits(text: bytes) -> None:
    """Anything else is no escape, and nobody guesses what it was."""
    error = refusal(form(text))
    assert error.code is errors.MALFORMED_QUERY_STRING
    assert "percent sign" in error.message


@pytest.mark.parametrize("text", [b"a=%ff", b"a=\xff", b"a=%ED%A0%80", b"%c3=a"])
def test_text_is_utf_8(text: bytes) -> None:
    """Escaped or not, in names too."""
    error = refusal(form(text))
    assert error.code is errors.MALFORMED_QUERY_STRING
    assert "UTF-8" in error.message


@UNHURRIED
@given(pairs=st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1), st.text()))
def test_what_a_client_encodes_is_decoded(pairs: dict[str, str]) -> None:
    """Whatever the characters are."""
    assert parameters(form(urlencode(pairs).encode())) == pairs


ESCAPE = st.integers(0, 127).map(lambda code: b"%%%02x" % code) | st.integers(0, 127).map(lambda code: b"%%%02X" % code)
PIECES = st.sampled_from([b"a", b"=", b"+", b" ", b"\n", b"\r\n", b"\t", b"_", b"==", b"=41", b"\xc3\xa9", b"%C3%A9"])


@UNHURRIED
@given(value=st.lists(ESCAPE | PIECES).map(b"".join))
def test_escapes_are_decoded_as_the_standard_library_does(value: bytes) -> None:
    """Also where the value holds what quoted-printable would take for its own."""
    ((_, expected),) = parse_qsl("a=" + value.decode(), keep_blank_values=True, errors="strict")
    assert parameters(form(b"a=" + value)) == {"a": expected}


def test_parameters_are_counted_before_they_are_split() -> None:
    """Up to the limit they are read, one more is refused; query string and body count together."""
    most = b"&".join(b"p%d=" % number for number in range(QUERY_PARAMETERS_MAX - 1))
    assert len(parameters(form(most))) == QUERY_PARAMETERS_MAX - 1
    assert len(parameters(form(most[5:], query=b"p0="))) == QUERY_PARAMETERS_MAX - 1
    for read in (form(most + b"&x&y"), form(most, query=b"&x"), form(b"&" * QUERY_PARAMETERS_MAX)):
        error = refusal(read)
        assert error.code is errors.MALFORMED_INPUT
        assert error.message == "The request has more than 1024 parameters; send fewer."


def test_a_name_is_taken_apart_to_a_fixed_depth() -> None:
    """What is deeper stays one piece, which no action knows."""
    tree = parameters(form(b"a" + b".a" * 1_000_000 + b"=x"))
    depth = 0
    while isinstance(below := tree["a"] if "a" in tree else tree.popitem()[1], dict):
        tree = below
        depth += 1
    assert depth == QUERY_DEPTH_MAX


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"a=" + b"%41" * (HTTP_BODY_BYTES_MAX // 3 - 1), id="escapes"),
        pytest.param(b"a=" + b"=" * (HTTP_BODY_BYTES_MAX - 2), id="signs"),
        pytest.param(b"a" + b".a" * (HTTP_BODY_BYTES_MAX // 2 - 1), id="parts"),
        pytest.param(b"&".join(b"%d%s" % (n, b".a" * 9) for n in range(QUERY_PARAMETERS_MAX - 1)), id="branches"),
    ],
)
def test_the_largest_body_takes_little_memory(body: bytes) -> None:
    """A few times its size at the most."""
    tracemalloc.start()
    parameters(form(body))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 5 * HTTP_BODY_BYTES_MAX
