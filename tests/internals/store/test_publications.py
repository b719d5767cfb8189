"""Publications in the store on SQLite: what a batch takes of them, and what is left of a damaged one."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core.claims import Publish, Stage


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "store")
    host.create()
    yield host
    host.close()


def stage(body: str, attempt: str) -> Stage:
    return Stage(queue=QUEUE, writer="w", batch=0, attempt=attempt, part=0, messages=(message(body),))


def publish(*attempts: str) -> Publish:
    return Publish(queue=QUEUE, writer="w", batch=0, attempts=tuple((attempt, 1) for attempt in attempts))


def test_what_is_staged_beyond_the_bytes_of_a_batch_is_left_to_the_next_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = host.engine._session
    finished = Mock(wraps=session.finish)
    monkeypatch.setattr(session, "finish", finished)
    *staged, published = host.do_together(*(stage("x" * 900_000, attempt) for attempt in "abcdef"), publish(*"abcdef"))
    assert [each.messages for each in staged] == [1] * 6
    assert published.messages == 6
    assert finished.call_count == 3


def test_a_stage_without_its_pieces_keeps_nothing_back(host: Host) -> None:
    host.do_together(stage("a", "a"), stage("b", "b"))
    host.engine._session.connection.execute("DELETE FROM piece WHERE stage_id = 1")
    assert not host.do(publish("a", "b")).more
    assert host.receive_one().body == "b"
