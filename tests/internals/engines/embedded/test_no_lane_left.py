"""A store that has no lane left."""

from pathlib import Path

import pytest

from tests.store import test_topics as topics
from tests.store.host import QUEUE, hosting
from tests.store.stores import embedded
from tests.store.test_publications import bodies, publish, publish_all, received, stage
from veilmq.core.errors import StoreFull
from veilmq.engines.embedded import positions


def test_a_store_without_a_lane_for_one_queue_gives_none_of_them_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    with hosting(None) as host:
        topics.made(host)
        topics.subscribe(host, topics.to_queue("a"), topics.to_queue("b", topics.OTHER))
        monkeypatch.setattr(positions, "LANES_MAX", 1)
        with pytest.raises(StoreFull):
            topics.publish(host)
        assert (host.counts(QUEUE), host.counts(topics.OTHER)) == ((0, 0, 0), (0, 0, 0))


def test_no_lane_left_lets_the_rest_wait_and_doubles_nothing(tmp_path: Path) -> None:
    """Lanes of three messages, and no number for a fourth: what fits is stored once, the rest when there is room."""
    with (
        embedded(tmp_path / "store").open(lane_sequences_max=3) as host,
        pytest.MonkeyPatch.context() as patch,
    ):
        host.create()
        stage(host, *bodies(*"abcdefgh"))
        patch.setattr(positions, "LANES_MAX", 2)
        assert publish(host, ("a", 8)).more
        assert host.counts() == (6, 0, 0)
        host.crash()
        patch.undo()
        publish_all(host, ("a", 8))
        assert sorted(received(host)) == list("abcdefgh")
