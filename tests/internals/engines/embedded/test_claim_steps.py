"""Claims in steps: how many a batch has, with no room, and what the doctor finds of them."""

from pathlib import Path

import apsw
import pytest

from tests.store.host import QUEUE, hosting
from tests.store.stores import embedded
from tests.store.test_claims import claim, open_source
from tests.store.test_full_disk import fill
from veilmq.core import claims, commands
from veilmq.core.errors import StoreFull
from veilmq.engines.embedded.batch import Batch
from veilmq.engines.embedded.claims import ClaimStep
from veilmq.engines.embedded.doctor import examine
from veilmq.engines.embedded.folder import DATABASE_NAME


def test_a_batch_has_few_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many readers who claim at once."""
    with hosting(None) as host:
        host.create()
        host.send(*(str(number) for number in range(3_000)))
        host.receive(3_000, timeout_s=0)
        claiming = []
        for source in "abcdef":
            open_source(host, source)
            claiming.append(claims.Claim(queue=QUEUE, source=source, epoch=1, number=1, messages_max=10_000))
        batches = []
        deliver = Batch.deliver

        def count(batch: Batch, until_s: float) -> bool:
            batches.extend([len(batch._entries)] if batch._entries else [])
            return deliver(batch, until_s)

        monkeypatch.setattr(Batch, "deliver", count)
        assert all(bound.more for bound in host.do_together(*claiming))
        assert batches == [3, 3]


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        ("DELETE FROM claim", "every claimed range is of a claim, and of one lane"),
        ("UPDATE claim_range SET last = first + 9", "no claimed ranges overlap"),
        ("UPDATE claim_range SET messages = messages + 1", "every claimed range has as many messages as it says"),
        ("UPDATE lease SET visible_at_ms = 0", "claimed messages have the leases that their ranges tell of"),
        ("DELETE FROM claim_range WHERE leased", "every lease that no time ends is of a claimed message"),
        ("DELETE FROM source", "every claim is of a queue and, until its messages go, of a source"),
        ("UPDATE claim SET messages = messages + 1", "every open claim has all of its messages"),
    ],
)
def test_the_doctor_finds_what_is_wrong_with_claims(tmp_path: Path, damage: str, check: str) -> None:
    folder = tmp_path / "store"
    with hosting(folder) as host:
        host.create()
        host.send("a", "b", "c")
        host.receive(1, timeout_s=0)
        open_source(host)
        assert claim(host).messages == 3
    assert examine(folder).ok
    with apsw.Connection(str(folder / DATABASE_NAME)) as connection:
        connection.execute(damage)
    assert check in [finding.check for finding in examine(folder).findings if not finding.ok]


def test_a_step_of_claims_that_finds_no_room_lets_the_deletes_of_its_batch_go_on(tmp_path: Path) -> None:
    """Messages that come back take leases, more than there is room for; the deletes make it."""
    with embedded(tmp_path / "store").open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        host.create(visibility_timeout_s=600)
        for _ in range(9):
            host.send(*("small" for _ in range(1_000)))
        host.do(claims.OpenSource(queue=QUEUE, source="s"))
        host.do(claims.Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=9_000))
        sent = fill(host)
        held = host.receive(len(sent))
        host.do(claims.CloseSource(queue=QUEUE, source="s"))
        host.advance(2_000)
        deleted: list[str] = []
        refused = 0
        for each in held:
            states, step = host.do_together(commands.Delete(queue=QUEUE, receipts=(each.receipt,)), ClaimStep())
            deleted += [state.value for state in states]
            refused += isinstance(step, StoreFull)
        assert deleted == ["live"] * len(sent)
        assert refused
        host.advance(10_000)
        assert host.counts() == (9_000, 0, 0)
        host.crash()
        host.check()
