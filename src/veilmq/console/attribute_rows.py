"""The attributes of a message as rows of a form: name, type and value each, some of them empty."""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any, NamedTuple

from veilmq.console.field_kinds import plain
from veilmq.core.limits import SQS_MESSAGE_ATTRIBUTES_MAX
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import AttributeValue, read_attributes

TYPES = ("String", "Number", "Binary")
HINT = (
    f"Up to {SQS_MESSAGE_ATTRIBUTES_MAX}. A row without a name does not count. A type may have a suffix after a "
    "period, as in Number.float. Binary values in base64."
)
"""What may be filled in."""

_NO_BASE64 = "A value of type Binary is written in base64, and this is none."


class AttributeRow(NamedTuple):
    """What was typed in a row, and what is wrong with it."""

    name: str = ""
    type: str = TYPES[0]
    value: str = ""
    problem: str = ""


def empty_rows() -> list[AttributeRow]:
    """Return the rows of an empty form."""
    return [AttributeRow()] * SQS_MESSAGE_ATTRIBUTES_MAX


def filled_rows(form: Mapping[str, str]) -> list[AttributeRow]:
    """Return the rows as they were typed, each with what is wrong with it."""
    rows = [_row(form, number) for number in range(SQS_MESSAGE_ATTRIBUTES_MAX)]
    names = [row.name for row in rows if row.name]
    return [row._replace(problem=_problem(row, names)) for row in rows]


def attributes_of(rows: list[AttributeRow]) -> dict[str, dict[str, Any]]:
    """Return the attributes of rows without a problem, as SendMessage takes them."""
    return {row.name: _value(row) for row in rows if row.name}


def _row(form: Mapping[str, str], number: int) -> AttributeRow:
    def field(part: str) -> str:
        return plain(form.get(f"attribute.{number}.{part}", ""))

    return AttributeRow(field("name").strip(), field("type").strip() or TYPES[0], field("value"))


def _problem(row: AttributeRow, names: list[str]) -> str:
    if not row.name:
        return "Give it a name, or empty the value." if row.value else ""
    if names.count(row.name) > 1:
        return "Another row has this name; keep one of them."
    try:
        read_attributes({row.name: _attribute(row)})
    except ValueError:
        return _NO_BASE64
    except SqsError as error:
        return error.message
    return ""


def _attribute(row: AttributeRow) -> AttributeValue:
    if row.type.partition(".")[0] == "Binary":
        return AttributeValue(data_type=row.type, binary_value=b64decode(row.value.strip(), validate=True))
    return AttributeValue(data_type=row.type, string_value=row.value)


def _value(row: AttributeRow) -> dict[str, Any]:
    if row.type.partition(".")[0] == "Binary":
        return {"DataType": row.type, "BinaryValue": row.value.strip()}
    return {"DataType": row.type, "StringValue": row.value}
