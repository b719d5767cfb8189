"""The routing table, from findings."""

from pathlib import Path

import msgspec
import pytest

from tests.internals.pipeline.made_tally import key_tally, lognormal, renewed
from veilmq.core.routing import RoutingTable, TimeoutClass
from veilmq.pipeline.cells import Tally
from veilmq.pipeline.cost import TuneOptions
from veilmq.pipeline.estimate import estimates
from veilmq.pipeline.route import _queue_tallies, _written, routing_table_of
from veilmq.pipeline.session import PipelineFailed

OPTIONS = TuneOptions()


def table_of(count: int, **firsts: Tally) -> tuple[dict[str, int], tuple[int, ...], int]:
    """Return the keys, the timeouts and the default of the table of at most ``count`` classes."""
    _, found = estimates([key_tally(first, key=key) for key, first in firsts.items()], options=OPTIONS)
    made = routing_table_of(found, receives_max=5, classes=count, options=OPTIONS)
    assert made is not None
    table = made.table
    return table.keys, tuple(each.visibility_timeout_s for each in table.classes), table.default


def test_keys_share_a_class_with_their_neighbours() -> None:
    """Two kinds of fast work, one of slow work; unknown keys belong to the longest class."""
    keys, timeouts_s, default = table_of(
        2,
        fast=lognormal(0.5, 3000, crash_rate=0.003),
        faster=lognormal(0.3, 3000, crash_rate=0.003),
        slow=lognormal(10.0, 3000, crash_rate=0.003),
    )
    assert keys == {"fast": 0, "faster": 0, "slow": 1}
    assert timeouts_s[0] < timeouts_s[1]
    assert default == 1


def test_work_of_which_the_end_was_not_seen_gets_a_longer_class() -> None:
    """Four times the longest timeout that there was; so do keys that are not listed."""
    stuck = lognormal(300.0, 3000, finishing=False)
    keys, timeouts_s, default = table_of(1, fast=lognormal(0.5, 3000, crash_rate=0.003), stuck=stuck)
    assert keys == {"fast": 0, "stuck": 1}
    assert timeouts_s[0] < 20
    assert timeouts_s[1] in range(118, 122)
    assert default == 1


def test_renewing_consumers_need_room_for_three_renewals() -> None:
    """Renewed each 20 s, a key takes the first class of a minute or more, though its work takes five."""
    keys, timeouts_s, _ = table_of(
        3, fast=lognormal(0.5, 3000, crash_rate=0.003), slow=lognormal(100.0, 3000, crash_rate=0.003), kept=renewed(20)
    )
    index = keys["kept"]
    assert timeouts_s[index] >= 59
    assert index == 0 or timeouts_s[index - 1] < 60


def test_messages_without_a_key_are_the_default() -> None:
    """The empty key is not listed."""
    assert estimates([key_tally(Tally(), key="")], options=OPTIONS)[1].keys() == {""}
    _, found = estimates([key_tally(lognormal(1.0, 1000), key="")], options=OPTIONS)
    made = routing_table_of(found, receives_max=5, classes=2, options=OPTIONS)
    assert made is not None
    assert made.table.keys == {}


@pytest.mark.parametrize("first", [Tally(), lognormal(300.0, 50, finishing=False)], ids=["nothing", "too-little"])
def test_nothing_known_is_no_table(first: Tally) -> None:
    """There is no class to choose."""
    _, found = estimates([key_tally(first)], options=OPTIONS)
    assert routing_table_of(found, receives_max=5, classes=2, options=OPTIONS) is None


def test_a_table_gets_a_new_version_when_it_differs(tmp_path: Path) -> None:
    """The one that is written again stays as it is."""
    path = tmp_path / "a folder" / "routes.json"
    short = RoutingTable(version=1, classes=(TimeoutClass(name="x", visibility_timeout_s=1, queue="x"),), default=0)
    longer = msgspec.structs.replace(short, classes=(TimeoutClass(name="x", visibility_timeout_s=2, queue="x"),))
    assert [_written(path, each).version for each in (short, short, longer, longer)] == [1, 1, 2, 2]
    assert msgspec.json.decode(path.read_bytes(), type=RoutingTable) == msgspec.structs.replace(longer, version=2)
    assert [each.name for each in path.parent.iterdir()] == ["routes.json"]


def test_a_queue_is_named_with_its_account_or_without() -> None:
    """The account must be given if several have a queue of that name."""
    one, two, other = (key_tally(Tally(), queue=queue) for queue in ("1/jobs", "2/jobs", "1/other"))
    assert _queue_tallies([one, other], "jobs") == [one]
    assert _queue_tallies([one, two, other], "2/jobs") == [two]
    with pytest.raises(PipelineFailed, match="Several accounts have a queue jobs: name one of 1/jobs, 2/jobs"):
        _queue_tallies([one, two, other], "jobs")
