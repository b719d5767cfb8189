"""``veilmq claims``: list, release, evict and close what readers of a queue have claimed."""

from typing import Annotated

from cyclopts import App, Parameter

from veilmq.cli.command import Json, Queue, Rows, Yes, confirm, instant, print_result, read_by
from veilmq.cli.connection import Endpoint, connect
from veilmq.client.api import Claims
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.claims import SourceView
from veilmq.core.limits import Range

_NUMBER = Range(minimum=0, maximum=2**53 - 1, default=0)

Source = Annotated[str, Parameter(help="Name of the source, as `veilmq claims list` prints it.")]
Number = Annotated[int, Parameter(converter=read_by(_NUMBER.read, allowed=_NUMBER), help="Number of the claim.")]
Message = Annotated[str, Parameter(help="Id of the message.")]


def list_sources(queue: Queue, /, *, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Print the sources that read a queue by claims, and the claims of each."""
    with connect(Claims, endpoint, queue) as claims:
        sources = claims.sources()
    print_result(sources, map(_rows, sources), json=json)


def _rows(source: SourceView) -> Rows:
    yield "source", source.source
    yield "consumer", source.consumer or "none"
    yield "alive", "yes" if source.alive else "no"
    yield "epoch", source.epoch
    yield "acknowledged", f"{source.acknowledged} of {source.last}"
    yield "held until", instant(source.hold_until_ms)
    for each in source.claims:
        state = f"{each.state.value}, {each.messages} messages since {instant(each.bound_at_ms)}"
        yield f"claim {each.number}", state


def release(
    queue: Queue,
    source: Source,
    number: Number,
    /,
    *,
    yes: Yes = False,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Return the messages of a claim to the queue; its reader fails when it reaches the claim."""
    with connect(Claims, endpoint, queue) as claims:
        confirm(f"Have the messages of claim {number} of {source} delivered again?", yes=yes)
        view = claims.release(source, number=number)
    print_result(view, f"Released claim {number} of {source}.", json=json)


def evict(
    queue: Queue,
    source: Source,
    number: Number,
    message: Message,
    /,
    *,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Move a message that its reader cannot process from a claim to the queue's dead-letter queue."""
    with connect(Claims, endpoint, queue) as claims:
        view = claims.evict(source, number=number, message=message)
    print_result(view, f"Evicted {message} from claim {number} of {source}.", json=json)


def close(
    queue: Queue, source: Source, /, *, yes: Yes = False, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT
) -> None:
    """Release all claims of a source and delete it; a reader that still uses it fails."""
    with connect(Claims, endpoint, queue) as claims:
        confirm(f"Have all messages that {source} holds delivered again, and delete the source?", yes=yes)
        claims.close_source(source)
    print_result({"source": source, "closed": True}, f"Closed {source}.", json=json)


app = App(name="claims")
for function, name in ((list_sources, "list"), (release, "release"), (evict, "evict"), (close, "close")):
    app.command(function, name=name)
