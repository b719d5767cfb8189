"""Claims and publications: what the calls of pipelines share."""

from collections.abc import Callable
from typing import Any

from tests.internals.store.interleaved import DEAD, JOBS, Family, Make, Sweep, World, create, just, sending
from veilmq.core import claims, commands
from veilmq.core.claims import Abandon, ListWriters, Publish, Stage
from veilmq.core.commands import InspectQueue, Receive
from veilmq.core.limits import SECOND_MS, WRITER_SILENCE_S
from veilmq.store.claims import ClaimStep
from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.publications import PublicationStep

# Claims.


def building_claims(end: str, *, hours: int = 0) -> Callable[[World], Any]:
    async def build(world: World) -> None:
        jobs = JOBS + end
        await create(world, DEAD + end)
        await create(world, jobs, dead_letter_queue=DEAD + end, receives_max=5)
        await world.do(sending(jobs, *"abcde", *("aa", "bb", "cc", "dd", "ee")))
        for source in ("s", "t"):
            await world.do(claims.OpenSource(queue=jobs, source=source, consumer=f"of {source}"))
        for number in (1, 2):
            await world.do(claims.Claim(queue=jobs, source="s", epoch=1, number=number, messages_max=3))
        await world.advance(hours * 3_600 * SECOND_MS)
        seen = await world.do(InspectQueue(queue=jobs, count=1))
        world.kept["message"] = seen[0].id

    return build


def claiming(end: str) -> dict[str, Make]:
    jobs = JOBS + end
    s: dict[str, Any] = {"queue": jobs, "source": "s"}
    current: dict[str, Any] = {**s, "epoch": 1}
    return {
        "open": just(claims.OpenSource(**s, consumer="of s")),
        "open another": just(claims.OpenSource(queue=jobs, source="u", consumer="of s")),
        "take over": just(claims.OpenSource(queue=jobs, source="t", consumer="of s", takeover=True)),
        "open newer": just(claims.OpenSource(queue=jobs, source="v", consumer="new")),
        "open newest": just(claims.OpenSource(queue=jobs, source="w", consumer="new")),
        "beat": just(claims.Heartbeat(**current, hold_s=900)),
        "claim": just(claims.Claim(**current, number=2, messages_max=3)),
        "claim next": just(claims.Claim(**current, number=3, messages_max=3)),
        "claim otherwise": just(claims.Claim(queue=jobs, source="t", epoch=1, number=1, messages_max=3)),
        "acknowledge": just(claims.AcknowledgeClaims(**current, number=1)),
        "acknowledge all": just(claims.AcknowledgeClaims(**current, number=2)),
        "read": just(claims.ReadClaim(**s, number=1)),
        "read part": just(claims.ReadClaim(**s, number=2)),
        "release": just(claims.ReleaseClaim(**s, number=1)),
        "evict": lambda kept: claims.EvictMessage(**s, number=1, message=kept["message"]),
        "close": just(claims.CloseSource(**s)),
        "list": just(claims.ListSources(queue=jobs)),
        "end": just(ClaimStep()),
        "purge": just(commands.PurgeQueue(queue=jobs)),
        "delete": just(commands.DeleteQueue(queue=jobs)),
        "purge dead": just(commands.PurgeQueue(queue=DEAD + end)),
        "set": just(commands.SetQueue(queue=jobs, settings={"dead_letter_queue": ""})),
        "receive": just(Receive(queue=jobs, count=2)),
        "sweep": just(Sweep()),
    }


_SLICED = PostgresOptions(claim_slice_rows=2)
_TAKERS = frozenset({"claim", "claim next", "claim otherwise", "receive"})
CLAIMS = Family(building_claims(""), claiming(""), _SLICED, _TAKERS)
CLAIMS_FIFO = Family(building_claims(".fifo"), claiming(".fifo"), _SLICED, _TAKERS)
CLAIMS_LATE = Family(building_claims("", hours=24), claiming(""), _SLICED, _TAKERS)


# Publications.


def staging(queue: str, *bodies: str, writer: str = "w", batch: int = 0, part: int = 0, attempt: str = "a") -> Stage:
    return Stage(
        queue=queue, writer=writer, batch=batch, attempt=attempt, part=part, messages=sending(queue, *bodies).messages
    )


def building_publications(end: str, *, silent: bool = False) -> Callable[[World], Any]:
    """Return what makes a writer with two batches, of which the first is decided and enters slowly."""

    async def build(world: World) -> None:
        jobs = JOBS + end
        await create(world, jobs)
        await world.do(staging(jobs, "aa", "ab", "ba"))
        await world.do(staging(jobs, "xx", attempt="dropped"))
        await world.do(staging(jobs, "ac", "bb", batch=1))
        await world.do(Publish(queue=jobs, writer="w", batch=0, attempts=(("a", 3),), messages_per_s_max=10))
        await world.advance(WRITER_SILENCE_S * SECOND_MS if silent else SECOND_MS)

    return build


def publishing(end: str) -> dict[str, Make]:
    jobs = JOBS + end
    w: dict[str, Any] = {"queue": jobs, "writer": "w"}
    return {
        "stage": just(staging(jobs, "ad", batch=1, part=1)),
        "stage again": just(staging(jobs, "ac", "bb", batch=1)),
        "stage otherwise": just(staging(jobs, "ae", batch=1, attempt="b")),
        "stage new": just(staging(jobs, "n", writer="new")),
        "publish first": just(Publish(**w, batch=0, attempts=(("a", 3),))),
        "publish": just(Publish(**w, batch=1, attempts=(("a", 2),))),
        "publish both": just(Publish(**w, batch=1, attempts=(("a", 2), ("b", 1)))),
        "publish new": just(Publish(queue=jobs, writer="new", batch=0, attempts=())),
        "abandon": just(Abandon(**w, batch=1)),
        "list": just(ListWriters(queue=jobs)),
        "enter": just(PublicationStep()),
        "purge": just(commands.PurgeQueue(queue=jobs)),
        "delete": just(commands.DeleteQueue(queue=jobs)),
        "set": just(commands.SetQueue(queue=jobs, settings={"message_bytes_max": 1_024})),
        "send": just(sending(jobs, "az", "ad")),
        "receive": just(Receive(queue=jobs, count=10)),
    }


PUBLICATIONS = Family(building_publications(""), publishing(""))
PUBLICATIONS_FIFO = Family(building_publications(".fifo"), publishing(".fifo"))
PUBLICATIONS_LATE = Family(building_publications("", silent=True), publishing(""))

PIPELINES = {
    "claims": CLAIMS,
    "claims fifo": CLAIMS_FIFO,
    "claims late": CLAIMS_LATE,
    "publications": PUBLICATIONS,
    "publications fifo": PUBLICATIONS_FIFO,
    "publications late": PUBLICATIONS_LATE,
}
