"""The cursors of message groups in FIFO queues of the store on SQLite."""

from pathlib import Path

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core.commands import Peek, Send
from veilmq.store.sqlite import fifo, settling


@pytest.mark.parametrize("passed_max", [150, 60])
def test_groups_past_their_retention_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed_max: int
) -> None:
    """So many in a receive, which is made again at once while there are more: the others are deleted meanwhile."""
    host = Host(tmp_path / "store")
    host.create(fifo=True, retention_s=60)
    new = [message(str(number), group=str(number), dedup_id=str(number)) for number in range(150)]
    host.do(Send(queue=QUEUE, messages=tuple(new)))
    host.advance(59_999)
    new = [message(f"{group} lives", group=group, dedup_id=f"living {group}") for group in ("0", "149", "z")]
    host.do(Send(queue=QUEUE, messages=tuple(new)))
    monkeypatch.setattr(settling, "_SWEPT_AT_ONCE", 4)
    monkeypatch.setattr(fifo, "EXPIRED_PASSED_MAX", passed_max)
    host.stop()
    host.advance(1)
    given: list[str] = []
    receives = 0
    while len(given) < 3:
        assert host.due_ms() == host.clock.now_ms()
        shown = [each.body for each in host.do(Peek(queue=QUEUE, count=3)).messages]
        given += [each.body for each in host.receive(3, timeout_s=900)]
        assert set(shown) <= set(given)
        host.check()
        receives += 1
    assert sorted(given) == ["0 lives", "149 lives", "z lives"]
    assert (receives == 1) == (passed_max == 150)
    assert host.rows("message") > 3
    monkeypatch.undo()
    host.sweep()
    assert (host.counts(), host.rows("ordered")) == ((0, 3, 0), 6)
    host.close()
