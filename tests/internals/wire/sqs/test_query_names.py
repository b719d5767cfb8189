"""The names of the Query protocol against the service model of the time when SQS spoke nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.model import Shape

from tests.clients.sqs_old_client import old_model
from veilmq.wire.sqs.query import VALUE, element_name, key_name


def members(shape: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and shape of each member of ``shape``, and of the structures in it."""
    for name, member in getattr(shape, "members", {}).items():
        yield name, member
        for inner in (member, getattr(member, "member", None), getattr(member, "value", None)):
            yield from members(inner)


def named(shape: Shape, member: str) -> str:
    """Return the name in ``shape``'s place, which is ``member`` where the model has no other."""
    name: str = shape.serialization.get("name", member)
    return name


@pytest.mark.parametrize("action", sorted(old_model().operation_names))
def test_names_are_those_of_the_model(action: str) -> None:
    """Of every list and every map in every request and reply, also of actions that are not here; all are flattened."""
    operation = old_model().operation_model(action)
    for shape in (operation.input_shape, operation.output_shape):
        for name, member in members(shape):
            if member.type_name == "list":
                assert element_name(name, action) == named(member.member, name)
                assert member.serialization["flattened"]
            elif member.type_name == "map":
                element = element_name(name, action)
                assert element == named(member, name)
                assert (key_name(element), VALUE) == (named(member.key, "key"), named(member.value, "value"))
                assert member.serialization["flattened"]
            else:
                assert named(member, name) == name
