"""What the Query protocol calls the members of requests and replies.

A member has one name in all protocols, but in Query a list or a map is *flattened*: it is its elements, each under the
element's name. ``AttributeNames`` is ``AttributeName.1``, ``AttributeName.2`` in a request and one ``<AttributeName>``
after the other in a reply; an entry of the map ``Attributes`` is ``Attribute.1.Name`` and ``Attribute.1.Value``. That
holds for every list and every map of the API (service model of 2012-11-05 as long as its protocol was Query).

The element's name is the member's in the singular, but for the rows below.
"""

_ELEMENTS = {
    "Actions": "ActionName",
    "Entries": "{action}RequestEntry",
    "Failed": "BatchResultErrorEntry",
    "Results": "{action}ResultEntry",
    "Successful": "{action}ResultEntry",
}
_KEYS = {"Tag": "Key"}

OLDER_NAMES = frozenset({"Tags"})
"""Maps that Java's older SDKs send under the member's own name: ``Tags.1.Key`` of TagQueue."""

VALUE = "Value"
"""What the value of a map's entry is called."""


def element_name(member: str, action: str) -> str:
    """Return the name of the elements of ``member``, a list or a map in a request or a reply of ``action``."""
    singular = member[:1].upper() + member[1:].removesuffix("s")
    return _ELEMENTS.get(member, singular).format(action=action)


def key_name(element: str) -> str:
    """Return what the key is called in an entry ``element`` of a map."""
    return _KEYS.get(element, "Name")
