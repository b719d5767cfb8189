"""The writer of replies: what is in them is what was meant, whatever it holds."""

from xml.etree import ElementTree as ET

import pytest

from veilmq.wire.smq.request import container, document, element, escaped, optional


def test_the_namespace_stands_on_the_root_without_a_slash() -> None:
    assert document("Queues", element("A", "b")) == (
        b'<?xml version="1.0"?>\n<Queues xmlns="http://mns.aliyuncs.com/doc/v1">\n<A>b</A>\n</Queues>'
    )


def test_each_element_ends_a_line() -> None:
    assert container("A", element("B", "c")) == "<A>\n<B>c</B>\n</A>\n"
    assert document("Queues", "").endswith(b"></Queues>")


@pytest.mark.parametrize("text", ["a & b < c > d", "\r\n\t ", "]]>", "\u4e2d\U0001f600\x85", "&amp;", "\"'", ""])
def test_any_text_is_read_as_it_was(text: str) -> None:
    assert (ET.fromstring(element("A", text)).text or "") == text


def test_what_xml_cannot_carry_is_replaced() -> None:
    assert escaped("a\x00\x01\x1f\ufffe\ud800b") == "a" + "\ufffd" * 5 + "b"


def test_an_element_that_is_absent_is_not_an_empty_one() -> None:
    assert optional("NextMarker", "") == ""
    assert optional("NextMarker", "a") == "<NextMarker>a</NextMarker>\n"
