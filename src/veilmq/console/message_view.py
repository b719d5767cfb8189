"""Which messages of a queue are looked at, and how: what the address of the page says, read and written.

``mine`` names leases, each by message and receive count, so that a page can tell what was received here from what
others hold. A receipt is never in an address.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from urllib.parse import urlencode
from uuid import UUID

from veilmq.core.limits import SQS_RECEIVE_COUNT

BODIES: dict[str, str] = {"text": "Text", "json": "JSON", "hex": "Hex"}
"""The ways to look at a body, and the words for them."""

COUNTS = (20, 100)
"""How many messages a page may show."""

NEXT = "next"
"""What a receive would give now."""

IN_FLIGHT = "in-flight"

STATES: dict[str, str] = {
    "all": "All",
    NEXT: "Next to be received",
    "visible": "Visible",
    IN_FLIGHT: "In flight",
    "delayed": "Delayed",
}
"""Which messages may be looked at, and the words for it."""


@dataclass(frozen=True, slots=True)
class MessageView:
    """A look; ``whole`` is the id of the one message whose body is shown whole."""

    state: str = "all"
    body: str = "text"
    count: int = COUNTS[0]
    whole: str = ""
    mine: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        """Return it as the address has it, what is usual left out."""
        usual = asdict(MessageView())
        told = {name: value for name, value in asdict(self).items() if value != usual[name]}
        return urlencode({name: ".".join(value) if name == "mine" else value for name, value in told.items()})

    def with_body(self, body: str) -> str:
        """Return the query of the same look with bodies shown in another way."""
        return replace(self, body=body).query

    def one(self, message: str, state: str) -> str:
        """Return the query that shows the body of one message, which is in ``state``, whole."""
        return replace(self, whole=message, state=state if self.state == NEXT else self.state).query

    def but(self, **other: object) -> str:
        """Return the query of the same look with something else in it; a whole body is left behind."""
        return replace(self, **{"whole": "", **other}).query  # type: ignore[arg-type]


def view_of(query: Mapping[str, str]) -> MessageView:
    """Return the look that an address asks for; what cannot be is passed over."""
    state = query.get("state", "").replace("_", "-")  # the API has an underscore there
    body, count = query.get("body", ""), query.get("count", "")
    mine = [each for each in query.get("mine", "").split(".") if each]
    return MessageView(
        state=state if state in STATES else "all",
        body=body if body in BODIES else "text",
        count=int(count) if count in map(str, COUNTS) else COUNTS[0],
        whole=_id(query.get("whole", "")),
        mine=tuple(mine[: SQS_RECEIVE_COUNT.maximum]),
    )


def _id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        return ""


def lease_name(message: str, receive_count: object) -> str:
    """Return what names one lease of the message with this id."""
    return f"{message}_{receive_count}"
