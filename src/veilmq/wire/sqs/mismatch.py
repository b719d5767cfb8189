"""Why a value cannot be converted, in the words of AWS's own framework, and where it is in the request."""

import re

_MISMATCH = re.compile(r"Expected `(?P<wanted>[^`|]+?)(?: \| null)?`, got `(?P<found>\w+)`(?: - at `\$\.(?P<at>.+)`)?")
_OUT_OF_RANGE = re.compile(
    r"(?:Expected `int` [<>]= -?[0-9]+|Integer value out of range|Number out of range)(?: - at `\$\.(?P<at>.+)`)?"
)
_FOUND = {
    "array": "Start of list found where not expected",
    "object": "Start of structure or map found where not expected",
    "str": "STRING_VALUE",
    "int": "NUMBER_VALUE",
    "float": "DECIMAL_VALUE",
    "bool": "BOOLEAN_VALUE",
    "null": "NULL_VALUE",
}
_WANTED = {
    "int": "an Integer",
    "str": "a String",
    "bytes": "a Blob",
    "bool": "a Boolean",
    "array": "a List",
    "object": "a Structure",
}


def explain(error: Exception) -> str | None:
    """Return the reason behind msgspec's ``error``; ``None`` if it is not about the type or the range of a value."""
    if match := _OUT_OF_RANGE.fullmatch(str(error)):
        return f"NUMBER_VALUE can not be converted to an Integer, it is out of range{_at(match)}"
    match = _MISMATCH.fullmatch(str(error))
    if match is None:
        return None
    place = _at(match)
    found = _FOUND[match["found"]]
    if found.endswith("expected"):
        return found + place
    return f"{found} can not be converted to {_WANTED[match['wanted']]}{place}"


def _at(match: re.Match[str]) -> str:
    return f" (at {match['at']})" if match["at"] else ""
