"""Sending the current span along, so that the receiver's is linked to it. Needs ``opentelemetry-api``."""

from collections.abc import Mapping

from opentelemetry import propagate

from veilmq.core.properties import Attribute


def traced(attributes: Mapping[str, Attribute] | None = None) -> dict[str, Attribute]:
    """Return ``attributes`` of a message to be sent, and those that name the current span, if there is one.

    They are what the configured propagator writes, ``traceparent`` by default, and count towards the ten that a message
    may have. What ``attributes`` names already stays.
    """
    carried: dict[str, str] = {}
    propagate.inject(carried)
    return {name: Attribute(type="String", text=text) for name, text in carried.items() if text} | dict(
        attributes or {}
    )
