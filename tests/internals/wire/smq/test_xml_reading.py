"""The reader of requests: what SDKs send is read alike, and what only harms is refused at little cost."""

import tracemalloc
from collections.abc import Callable
from time import process_time

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from veilmq.core.limits import SMQ_XML_DEPTH_MAX, SMQ_XML_ELEMENTS_MAX, SMQ_XML_TAG_CHARACTERS_MAX
from veilmq.wire.smq.errors import MALFORMED_XML, SmqError
from veilmq.wire.smq.request import Element, document, element, parse_xml, read_flat_xml, read_xml

MIB = 1_048_576
_SDK = b"http://mns.aliyuncs.com/doc/v1/"


def refused(body: bytes) -> bool:
    try:
        read_xml(body)
    except SmqError as error:
        return error.code is MALFORMED_XML
    return False


def leaves(root: Element) -> dict[str, str]:
    return {child.name: child.text for child in root.children}


@pytest.mark.parametrize(
    "body",
    [
        b'<?xml version="1.0" encoding="utf-8"?>\n<Queue xmlns="' + _SDK + b'"><DelaySeconds>5</DelaySeconds></Queue>',
        b'\xef\xbb\xbf<?xml version="1.0"?><Queue xmlns="http://mns.aliyuncs.com/doc/v1"><DelaySeconds>5</DelaySeconds></Queue>',
        b"<Queue><DelaySeconds>5</DelaySeconds></Queue>",
        b'<m:Queue xmlns:m="' + _SDK + b'"><m:DelaySeconds kind="x">5</m:DelaySeconds></m:Queue>',
        b"<Queue>\n  <!-- five -->\n  <DelaySeconds>5</DelaySeconds>\n</Queue>\n",
        b'<?xml version="1.0" encoding="UTF-8"?><Queue><DelaySeconds><![CDATA[5]]></DelaySeconds></Queue>',
        b'<?xml version="1.0" encoding="GBK"?><Queue><DelaySeconds>&#53;</DelaySeconds></Queue>',
    ],
    ids=["python", "bom-and-java", "go", "prefixes", "indented", "cdata", "another-encoding-of-ascii"],
)
def test_requests_of_all_kinds_of_writers_are_read_alike(body: bytes) -> None:
    root = read_xml(body)

    assert root.name == "Queue"
    assert leaves(root) == {"DelaySeconds": "5"}


_PIECES = st.sampled_from(
    [
        b'<?xml version="1.0" encoding="utf-8"?>',
        b'<?xml version="1.0"?>',
        b'<?xml version="1.0" encoding="GBK"?>',
        b"<A>",
        b"</A>",
        b'<A xmlns="http://mns.aliyuncs.com/doc/v1/">',
        b"<B>",
        b"</B>",
        b"<B></B>",
        b"<B>text</B>",
        b"<B/>",
        b"<b:B>",
        b"<!-- -->",
        b"<![CDATA[x]]>",
        b"]]>",
        b"&amp;",
        b" ",
        b"\n",
        b"\r\n",
        b"\x0c",
        b"\x7f",
        b"\x01",
        b"\xc3\xa9",
        b"x",
    ]
)


def built(element: Element) -> object:
    return msgspec.to_builtins(element)


@given(st.lists(_PIECES, max_size=12), st.booleans())
@example([b"<B>text</B>", b" ", b"<B></B>", b"\n"], True)
@example([], True)
def test_what_is_read_without_a_parser_is_read_as_by_one(pieces: list[bytes], whole: bool) -> None:
    body = b"".join([b"<A>", *pieces, b"</A>"] if whole else pieces)

    flat = read_flat_xml(body)

    if flat is not None:
        assert built(flat) == built(parse_xml(body))


def test_requests_of_the_sdks_are_read_without_a_parser() -> None:
    """All that are flat: sends without properties, settings, deletes of several."""
    text = "SSBhbSB0ZXN0IE1lc3NhZ2Uu+/="
    message = f"<MessageBody>{text}</MessageBody><DelaySeconds>0</DelaySeconds><Priority>10</Priority>"
    for opening in ('<?xml version="1.0" encoding="utf-8"?>\n', '<?xml version="1.0" encoding="UTF-8"?>', ""):
        for namespace in (' xmlns="http://mns.aliyuncs.com/doc/v1/"', ""):
            body = f"{opening}<Message{namespace}>{message}</Message>".encode()
            flat = read_flat_xml(body)
            assert flat is not None
            assert built(flat) == built(parse_xml(body))
            assert leaves(flat)["MessageBody"] == text
    assert read_flat_xml(b"<Queue></Queue>") is not None
    assert read_flat_xml(b"<Message><A><B>1</B></A></Message>") is None


def test_what_is_nested_keeps_its_order_and_its_texts() -> None:
    root = read_xml(
        b"<Messages><Message><A>1</A><B/></Message><Message><A> 2&amp;&lt;&#x20AC;\n</A></Message></Messages>"
    )

    assert [child.name for child in root.children] == ["Message", "Message"]
    assert [leaves(child) for child in root.children] == [{"A": "1", "B": ""}, {"A": " 2&<\u20ac\n"}]


def test_where_there_are_elements_there_is_no_text() -> None:
    """None of it, rather than what happens to stand behind them."""
    root = read_xml(b"<Message><A>one<B>two</B>three</A> four <C> </C></Message>")

    assert (root.text, leaves(root)) == ("", {"A": "", "C": " "})


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"), max_size=200))
def test_a_text_that_was_written_is_read_again(text: str) -> None:
    assert leaves(read_xml(document("Message", element("MessageBody", text + "\r\n\t")))) == {
        "MessageBody": text + "\r\n\t"
    }


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_read_or_refused(body: bytes) -> None:
    assert refused(body) or read_xml(body).name


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"no xml",
        b"<Queue>",
        b"<Queue></queue>",
        b"<Queue/><Queue/>",
        b"<Queue>\x01</Queue>",
        b"<Queue>&#1;</Queue>",
        b"<Queue>\xff</Queue>",
        b"<Queue>&unknown;</Queue>",
        "<Queue>5</Queue>".encode("utf-16"),
        '<?xml version="1.0" encoding="utf-16"?><Queue/>'.encode("utf-16-le"),
        '<?xml version="1.0" encoding="GBK"?><Queue>\u4e2d</Queue>'.encode("gbk"),
        '<?xml version="1.0" encoding="ISO-8859-1"?><Queue>\u00e9</Queue>'.encode(),
    ],
)
def test_what_is_not_well_formed_is_malformed(body: bytes) -> None:
    assert refused(body)


@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE Queue><Queue/>",
        b'<!DOCTYPE Queue [<!ENTITY a "5">]><Queue>&a;</Queue>',
        b'<!DOCTYPE Queue [<!ENTITY a SYSTEM "file:///etc/passwd">]><Queue>&a;</Queue>',
        b'<!DOCTYPE Queue SYSTEM "http://127.0.0.1:9/x.dtd"><Queue/>',
        b'<!DOCTYPE Queue PUBLIC "a" "http://127.0.0.1:9/x.dtd"><Queue/>',
        b'<?xml version="1.0"?><!DOCTYPE Queue [<!ENTITY % a SYSTEM "file:///etc/passwd"> %a;]><Queue/>',
    ],
)
def test_there_are_no_document_types_and_so_no_entities(body: bytes) -> None:
    assert refused(body)


def test_elements_may_be_within_each_other_as_far_as_the_limit_says() -> None:
    deep = SMQ_XML_DEPTH_MAX

    assert read_xml(b"<a>" * deep + b"</a>" * deep).name == "a"
    assert refused(b"<a>" * (deep + 1) + b"</a>" * (deep + 1))


def test_there_may_be_as_many_elements_as_the_limit_says() -> None:
    most = SMQ_XML_ELEMENTS_MAX - 1

    assert len(read_xml(b"<a>" + b"<b/>" * most + b"</a>").children) == most
    assert refused(b"<a>" + b"<b/>" * (most + 1) + b"</a>")


def test_names_and_attributes_may_be_as_long_as_the_limit_says() -> None:
    most = SMQ_XML_TAG_CHARACTERS_MAX

    assert read_xml(b"<%b/>" % (b"a" * most)).name == "a" * most
    assert refused(b"<%b/>" % (b"a" * (most + 1)))
    assert read_xml(b'<a b="%b"/>' % (b"c" * (most - 1))).name == "a"
    assert refused(b'<a b="%b"/>' % (b"c" * most))


@pytest.mark.parametrize("character", ["a", "\u20ac", "\U0001f600", "&amp;", "\n", "]"])
def test_a_text_may_be_as_long_as_a_body(character: str) -> None:
    count = 8 * MIB // len(character.encode()) - 20

    text = read_xml(f"<Message><A>{character * count}</A></Message>".encode()).children[0].text

    assert len(text) == count
    assert set(text) == {"&" if character == "&amp;" else character}


def _laughs() -> bytes:
    entities = b'<!ENTITY l0 "lol">' + b"".join(
        b'<!ENTITY l%d "%b">' % (level, b"&l%d;" % (level - 1) * 10) for level in range(1, 10)
    )
    return b"<!DOCTYPE l [" + entities + b"]><l>&l9;</l>"


def _quadratic() -> bytes:
    return b'<!DOCTYPE l [<!ENTITY a "' + b"x" * MIB + b'">]><l>' + b"&a;" * MIB + b"</l>"


BOMBS: dict[str, Callable[[], bytes]] = {
    "a billion laughs": _laughs,
    "quadratic": _quadratic,
    "deep": lambda: b"<a>" * (8 * MIB // 3),
    "tiny elements": lambda: b"<a>" + b"<b/>" * (2 * MIB - 1),
    "tiny elements with names of their own": lambda: b"<a>" + b"".join(b"<b%x/>" % n for n in range(700_000)),
    "tiny prefixes": lambda: b"<a>" + b"<b:c/>" * MIB,
    "a megabyte of an attribute": lambda: b'<a b="' + b"c" * MIB + b'"/>',
    "eight megabytes of an attribute": lambda: b'<a b="' + b"c" * (8 * MIB - 20) + b'"/>',
    "attributes": lambda: b"<a " + b" ".join(b'b%x="1"' % n for n in range(600_000)) + b"/>",
    "a name": lambda: b"<" + b"a" * (8 * MIB - 20) + b"/>",
    "an unfinished tag": lambda: b"<a " + b" " * (8 * MIB - 20),
    "references": lambda: b"<a>" + b"&#65;" * (8 * MIB // 5),
    "comments": lambda: b"<a>" + b"<!---->" * MIB,
    "instructions": lambda: b"<a>" + b"<?b?>" * (8 * MIB // 5),
    "sections": lambda: b"<a>" + b"<![CDATA[]]>" * (8 * MIB // 12),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_only_harms_is_refused_for_little_memory_and_time(bomb: str) -> None:
    body = BOMBS[bomb]()
    started_s = process_time()
    tracemalloc.start()
    try:
        assert refused(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert process_time() - started_s < 1.0, "as long as it takes to look at the bytes, and no more"
    assert peak < 4 * MIB, "whatever is sent"
