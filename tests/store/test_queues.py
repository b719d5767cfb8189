"""Queues: created, found again, set, shown, listed page by page, deleted; and commands on one that is not there."""

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.commands import Command, VisibilityChange
from veilmq.core.errors import EditRefused, QueueExists, QueueNotFound, SettingsConflict
from veilmq.core.settings import QueueSettings

ON_A_QUEUE: list[Command] = [
    commands.DeleteQueue(queue=QUEUE),
    commands.PurgeQueue(queue=QUEUE),
    commands.SetQueue(queue=QUEUE, settings={}),
    commands.EditQueue(queue=QUEUE, setting="policy", edit=str.upper),
    commands.TagQueue(queue=QUEUE, tags={"team": "red"}),
    commands.ShowQueue(queue=QUEUE),
    commands.Send(queue=QUEUE, messages=(message("a"),)),
    commands.Receive(queue=QUEUE),
    commands.Delete(queue=QUEUE, receipts=("nonsense",)),
    commands.ChangeVisibility(queue=QUEUE, changes=(VisibilityChange(receipt="nonsense", timeout_s=0),)),
]


def listed(host: Host, **narrowed: object) -> tuple[list[str], bool]:
    """Return one page of the account `a`."""
    page = host.do(commands.ListQueues(account="a", **narrowed))  # type: ignore[arg-type]
    return page.names, page.more


def test_a_new_queue(host: Host) -> None:
    """It has the settings that were asked for, the defaults for the rest, and its time of creation."""
    view = host.create(delay_s=7)
    assert view.queue == QUEUE
    assert view.settings == QueueSettings(delay_s=7)
    assert view.created_at_ms == view.modified_at_ms == host.clock.now_ms()
    assert host.do(commands.ShowQueue(queue=QUEUE)) == view


def test_creating_a_queue_again_finds_it(host: Host) -> None:
    """With the same or with fewer settings supplied; it keeps its messages."""
    created = host.create(delay_s=7, retention_s=60)
    host.send("a", delay_s=0)
    host.advance(1)
    assert host.create() == created
    assert host.create(delay_s=7) == created
    assert host.counts() == (1, 0, 0)


def test_creating_a_queue_again_with_another_setting_is_an_error(host: Host) -> None:
    """It names the setting, and changes nothing."""
    created = host.create(delay_s=7)
    with pytest.raises(QueueExists) as refusal:
        host.create(delay_s=8)
    assert (refusal.value.queue, refusal.value.setting) == (QUEUE, "delay_s")
    with pytest.raises(QueueExists):
        host.create(visibility_timeout_s=31)
    assert host.create() == created


def test_a_setting_is_edited_by_what_it_is(host: Host) -> None:
    """Two edits that were asked for at once both count, and the time of the change is told."""
    host.create()
    host.advance(1_000)
    for edit in ("a{}".format, "b{}".format):
        host.do(commands.EditQueue(queue=QUEUE, setting="policy", edit=edit))
    view = host.do(commands.ShowQueue(queue=QUEUE))
    assert (view.settings.policy, view.modified_at_ms) == ("ba", host.clock.now_ms())


def test_an_edit_that_is_refused_changes_nothing(host: Host) -> None:
    """The reason comes back to who asked."""
    created = host.create()
    reason = ValueError("no")

    def refuse(text: str) -> str:
        raise EditRefused(reason)

    with pytest.raises(EditRefused) as refusal:
        host.do(commands.EditQueue(queue=QUEUE, setting="policy", edit=refuse))
    assert refusal.value.reason is reason
    assert host.create() == created


def test_settings_are_changed_one_by_one(host: Host) -> None:
    """What is not named stays; the time of the change is told."""
    created = host.create(delay_s=7)
    host.advance(5)
    host.do(commands.SetQueue(queue=QUEUE, settings={"visibility_timeout_s": 9}))
    view = host.do(commands.ShowQueue(queue=QUEUE))
    assert view.settings == QueueSettings(delay_s=7, visibility_timeout_s=9)
    assert (view.created_at_ms, view.modified_at_ms) == (created.created_at_ms, created.created_at_ms + 5)
    with pytest.raises(QueueExists):
        host.create(visibility_timeout_s=30)


def test_settings_that_contradict_each_other_are_refused(host: Host) -> None:
    """When a queue is created, set or edited; nothing is changed."""
    with pytest.raises(SettingsConflict) as refusal:
        host.create(receives_max=3)
    assert refusal.value.setting == "receives_max"
    with pytest.raises(QueueNotFound):
        host.do(commands.ShowQueue(queue=QUEUE))
    created = host.create()
    host.advance(1)
    for change in (
        commands.SetQueue(queue=QUEUE, settings={"delay_s": 5, "fifo": True}),
        commands.SetQueue(queue=QUEUE, settings={"delay_s": 5, "content_deduplication": True}),
        commands.EditQueue(queue=QUEUE, setting="dead_letter_queue", edit=lambda _: "a/letters"),
    ):
        with pytest.raises(SettingsConflict):
            host.do(change)
    assert host.do(commands.ShowQueue(queue=QUEUE)) == created


def test_queues_survive(kept: Host) -> None:
    """With their settings and times; a deleted one does not come back."""
    kept.create(delay_s=7)
    kept.create("a/gone")
    kept.do(commands.SetQueue(queue=QUEUE, settings={"receive_wait_s": 3}))
    kept.do(commands.DeleteQueue(queue="a/gone"))
    view = kept.do(commands.ShowQueue(queue=QUEUE))
    for again in (kept.crash, kept.reopen):
        again()
        assert kept.do(commands.ShowQueue(queue=QUEUE)) == view
        assert kept.do(commands.ListQueues(account="a")).names == []


@pytest.mark.parametrize("command", ON_A_QUEUE, ids=lambda command: type(command).__name__)
def test_a_queue_that_is_not_there(host: Host, command: Command) -> None:
    """Every command on it says so, before and after it existed."""
    for _ in range(2):
        with pytest.raises(QueueNotFound) as refusal:
            host.do(command)
        assert refusal.value.queue == QUEUE
        host.create()
        host.do(commands.DeleteQueue(queue=QUEUE))


def test_listing(host: Host) -> None:
    """By name, of one account only, by prefix, a page at a time."""
    for name in ("a/c", "a/a", "b/a", "a/bb", "a/b", "aa/x", "a/ba"):
        host.create(name)
    assert listed(host) == (["a", "b", "ba", "bb", "c"], False)
    assert listed(host, prefix="b") == (["b", "ba", "bb"], False)
    assert listed(host, count=2) == (["a", "b"], True)
    assert listed(host, count=2, after="b") == (["ba", "bb"], True)
    assert listed(host, count=2, after="bb") == (["c"], False)
    assert listed(host, count=5) == (["a", "b", "ba", "bb", "c"], False)
    assert listed(host, prefix="b", count=2) == (["b", "ba"], True)
    assert listed(host, prefix="b", count=2, after="ba") == (["bb"], False)
    assert listed(host, prefix="x") == ([], False)
    assert listed(host, after="a a name that is not there") == (["b", "ba", "bb", "c"], False)
    host.do(commands.DeleteQueue(queue="a/ba"))
    assert listed(host, prefix="b") == (["b", "bb"], False)


def test_queues_do_not_share_messages(host: Host) -> None:
    """What one is sent, purged of or deleted with is nobody else's."""
    for name in ("a/x", "a/y", "b/x"):
        host.create(name)
        host.send(name.replace("/", "-"), queue=name)
    host.do(commands.PurgeQueue(queue="a/x"))
    host.do(commands.DeleteQueue(queue="a/y"))
    assert host.counts("a/x") == (0, 0, 0)
    assert host.receive_one(queue="b/x").body == "b-x"
    host.create("a/y")
    assert host.counts("a/y") == (0, 0, 0)


@pytest.mark.parametrize("again", ["reopen", "crash"])
def test_a_purged_or_deleted_queue_stays_empty(kept: Host, again: str) -> None:
    """Also when the store ends at once, before anything was swept."""
    for name in ("a/purged", "a/deleted"):
        kept.create(name)
        kept.send(*(str(number) for number in range(50)), queue=name)
    kept.do(commands.PurgeQueue(queue="a/purged"))
    kept.do(commands.DeleteQueue(queue="a/deleted"))
    getattr(kept, again)()
    kept.create("a/deleted")
    for name in ("a/purged", "a/deleted"):
        assert kept.counts(name) == (0, 0, 0)
        assert kept.receive(10, queue=name) == []
