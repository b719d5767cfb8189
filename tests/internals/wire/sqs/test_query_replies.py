"""Replies in XML are well-formed whatever they hold, and say what they were given."""

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.sqs.asking import UNHURRIED
from tests.internals.wire.sqs.test_text import is_accepted
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import AttributeValue, Shape
from veilmq.wire.sqs.query import error_xml, response_xml

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


class Told(Shape, frozen=True, kw_only=True):
    """A reply with one member of each kind."""

    text: str | None = None
    number: int | None = None
    flag: bool | None = None
    names: list[str] | None = None
    tags: dict[str, str] | None = None
    settings: dict[str, AttributeValue] | None = None
    successful: list[AttributeValue] | None = None


def result(**members: Any) -> str:
    """Return what is inside the result of a reply with ``members``."""
    text = response_xml("Do", Told(**members), "r-1").decode()
    found = re.fullmatch(r".*<DoResult>(.*)</DoResult>.*", text, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("members", "inside"),
    [
        ({}, ""),
        ({"text": "", "number": 0, "flag": False}, "<Text></Text><Number>0</Number><Flag>false</Flag>"),
        ({"flag": True}, "<Flag>true</Flag>"),
        ({"names": ["a", "b"]}, "<Name>a</Name><Name>b</Name>"),
        ({"tags": {"a": "b"}}, "<Tag><Key>a</Key><Value>b</Value></Tag>"),
        (
            {"settings": {"a": AttributeValue(binary_value=b"hi", data_type="Binary")}},
            "<Setting><Name>a</Name><Value><BinaryValue>aGk=</BinaryValue><DataType>Binary</DataType></Value></Setting>",
        ),
        ({"successful": [AttributeValue()]}, "<DoResultEntry></DoResultEntry>"),
        ({"names": [], "tags": {}}, ""),
        ({"text": "a<b>&\"'"}, "<Text>a&lt;b&gt;&amp;\"'</Text>"),
        ({"text": "\r\n\t"}, "<Text>&#xD;\n\t</Text>"),
        ({"text": "é中🎉"}, "<Text>é中🎉</Text>"),
        ({"tags": {"<": "\x00"}}, "<Tag><Key>&lt;</Key><Value>�</Value></Tag>"),
    ],
    ids=repr,
)
def test_what_is_written(members: dict[str, Any], inside: str) -> None:
    """Members by their names, lists and maps flattened, absent ones left out."""
    assert result(**members) == inside


def test_an_action_that_answers_nothing_has_no_result() -> None:
    """Only the id of the request."""
    document = ET.fromstring(response_xml("Do", None, "r-1"))
    assert document.tag == f"{NAMESPACE}DoResponse"
    assert [child.tag for child in document] == [f"{NAMESPACE}ResponseMetadata"]
    assert document.findtext(f"{NAMESPACE}ResponseMetadata/{NAMESPACE}RequestId") == "r-1"


def test_an_error() -> None:
    """Has whose fault it is, the older code, the text and an empty detail."""
    assert error_xml(SqsError(errors.QUEUE_DOES_NOT_EXIST, "a < b"), "r-1").decode() == (
        '<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error>'
        "<Type>Sender</Type><Code>AWS.SimpleQueueService.NonExistentQueue</Code><Message>a &lt; b</Message><Detail/>"
        "</Error><RequestId>r-1</RequestId></ErrorResponse>"
    )
    assert b"<Type>Receiver</Type><Code>InternalFailure</Code>" in error_xml(SqsError(errors.INTERNAL_FAILURE, ""), "")


@UNHURRIED
@given(text=st.text())
def test_a_text_comes_through(text: str) -> None:
    """As it was, but for what XML cannot carry."""
    expected = "".join(character if is_accepted(character) else "\ufffd" for character in text)
    for document, place in [
        (response_xml("Do", Told(text=text), "r"), f"{NAMESPACE}DoResult/{NAMESPACE}Text"),
        (error_xml(SqsError(errors.INVALID_ADDRESS, text), "r"), f"{NAMESPACE}Error/{NAMESPACE}Message"),
    ]:
        assert ET.fromstring(document).findtext(place) == expected
