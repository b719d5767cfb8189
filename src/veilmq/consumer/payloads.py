"""From a message to what the handler is annotated with.

``str`` is the body, ``bytes`` its UTF-8, ``ReceivedMessage`` all of it. A pydantic model reads the body by itself;
everything else (dataclasses, msgspec structs, typed dicts, lists …) is JSON, read and checked by msgspec. Without an
annotation the body is handed over as text.
"""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.outcomes import Undecodable

Decode = Callable[[ReceivedMessage], Any]


def decoder(annotation: Any) -> Decode:
    """Return how a message becomes ``annotation``; it raises ``Undecodable``. ``TypeError`` for what JSON cannot be."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    model = getattr(annotation, "model_validate_json", None)
    if inspect.isclass(annotation) and model is not None:
        return _checked(model)
    return _checked(msgspec.json.Decoder(annotation).decode)


def _checked(read: Callable[[str], Any]) -> Decode:
    def decode(message: ReceivedMessage) -> Any:
        try:
            return read(message.body)
        except (ValueError, TypeError) as error:  # both libraries' errors are ValueErrors
            raise Undecodable(f"The body is not what the handler takes: {error}") from error

    return decode


def _text(message: ReceivedMessage) -> str:
    return message.body


def _data(message: ReceivedMessage) -> bytes:
    return message.body.encode()


def _whole(message: ReceivedMessage) -> ReceivedMessage:
    return message


_PLAIN: dict[Any, Decode] = {
    inspect.Parameter.empty: _text,
    Any: _text,
    str: _text,
    bytes: _data,
    ReceivedMessage: _whole,
}
