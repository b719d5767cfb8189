"""Queues: created, found again, set, shown, listed page by page, deleted; and commands on one that is not there."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.store.host import QUEUE, Host, message
from tests.store.postgres_host import Store
from veilmq.core import commands, errors
from veilmq.core.commands import Command, VisibilityChange
from veilmq.core.limits import PURGE_PAUSE_S, QUEUE_NAME_PAUSE_S
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
    created = host.create(delay_s=7, retention_s=60)
    host.send("a", delay_s=0)
    host.advance(1)
    assert host.create() == created
    assert host.create(delay_s=7) == created
    assert host.counts() == (1, 0, 0)


def test_creating_a_queue_again_with_another_setting_is_an_error(host: Host) -> None:
    created = host.create(delay_s=7)
    with pytest.raises(errors.QueueExists) as refusal:
        host.create(delay_s=8)
    assert (refusal.value.queue, refusal.value.setting) == (QUEUE, "delay_s")
    with pytest.raises(errors.QueueExists):
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
    created = host.create()
    reason = ValueError("no")

    def refuse(text: str) -> str:
        raise errors.EditRefused(reason)

    with pytest.raises(errors.EditRefused) as refusal:
        host.do(commands.EditQueue(queue=QUEUE, setting="policy", edit=refuse))
    assert refusal.value.reason is reason
    assert host.create() == created


def test_settings_are_changed_one_by_one(host: Host) -> None:
    """What is not named stays; the time of the change is told."""
    created = host.create(delay_s=7)
    host.advance(5)
    host.set_queue(visibility_timeout_s=9)
    view = host.do(commands.ShowQueue(queue=QUEUE))
    assert view.settings == QueueSettings(delay_s=7, visibility_timeout_s=9)
    assert (view.created_at_ms, view.modified_at_ms) == (created.created_at_ms, created.created_at_ms + 5)
    with pytest.raises(errors.QueueExists):
        host.create(visibility_timeout_s=30)


def test_settings_that_contradict_each_other_are_refused(host: Host) -> None:
    """When a queue is created, by defaults too, set or edited; nothing is changed."""
    for given in ("settings", "defaults"):
        with pytest.raises(errors.SettingsConflict) as refusal:
            create(host, **{given: {"receives_max": 3}})
        assert refusal.value.setting == "receives_max"
    with pytest.raises(errors.QueueNotFound):
        host.do(commands.ShowQueue(queue=QUEUE))
    created = host.create()
    host.advance(1)
    for change in (
        commands.SetQueue(queue=QUEUE, settings={"delay_s": 5, "fifo": True}),
        commands.SetQueue(queue=QUEUE, settings={"delay_s": 5, "content_deduplication": True}),
        commands.EditQueue(queue=QUEUE, setting="dead_letter_queue", edit=lambda _: "a/letters"),
    ):
        with pytest.raises(errors.SettingsConflict):
            host.do(change)
    assert host.do(commands.ShowQueue(queue=QUEUE)) == created


def test_queues_survive(kept: Host) -> None:
    """With their settings, tags and times; a deleted one does not come back."""
    kept.create(delay_s=7)
    kept.create("a/gone")
    kept.set_queue(receive_wait_s=3)
    tag(kept, team="red")
    kept.drop("a/gone")
    view = kept.do(commands.ShowQueue(queue=QUEUE))
    for again in (kept.crash, kept.reopen):
        again()
        assert kept.do(commands.ShowQueue(queue=QUEUE)) == view
        assert kept.do(commands.ListQueues(account="a")).names == []


@pytest.mark.parametrize("command", ON_A_QUEUE, ids=lambda command: type(command).__name__)
def test_a_queue_that_is_not_there(host: Host, command: Command) -> None:
    for _ in range(2):
        with pytest.raises(errors.QueueNotFound) as refusal:
            host.do(command)
        assert refusal.value.queue == QUEUE
        host.create()
        host.drop()


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
    host.drop("a/ba")
    assert listed(host, prefix="b") == (["b", "bb"], False)


# Tags of queues: put, removed, bounded, kept; they change nothing else.


FIFTY = {f"key{number}": "" for number in range(50)}


def tags(host: Host) -> dict[str, str]:
    found: dict[str, str] = host.do(commands.ShowQueue(queue=QUEUE)).settings.tags
    return found


def tag(host: Host, *removed: str, **put: str) -> None:
    host.do(commands.TagQueue(queue=QUEUE, tags=put, removed=removed))


def create(host: Host, **given: Any) -> Any:
    return host.do(commands.CreateQueue(queue=QUEUE, **given))


def test_tags_are_put_and_removed(host: Host) -> None:
    """A key is put over what it was; removing what is not there is nothing; both at once removes first."""
    host.create()
    assert tags(host) == {}
    tag(host, team="red", stage="test")
    tag(host, "nothing", team="blue")
    assert tags(host) == {"team": "blue", "stage": "test"}
    tag(host, "team", "stage", team="green")
    assert tags(host) == {"team": "green"}


def test_a_queue_is_created_with_tags(host: Host) -> None:
    """They do not tell an existing queue apart, and a second creation does not change them."""
    made = create(host, tags={"team": "red"})
    assert (made.settings.tags, made.is_new) == ({"team": "red"}, True)
    created = replace(made, is_new=False)
    assert create(host, tags={"team": "blue"}) == created
    assert host.create() == created


def test_fifty_tags_are_the_most(host: Host) -> None:
    """One more is refused, whole, also at the creation; a key put again is no more."""
    with pytest.raises(errors.TooManyTags) as refusal:
        create(host, tags={**FIFTY, "more": ""})
    assert refusal.value.tags_max == 50
    create(host, tags=FIFTY)
    tag(host, key7="seven")
    with pytest.raises(errors.TooManyTags):
        tag(host, key7="eight", more="")
    assert tags(host) == {**FIFTY, "key7": "seven"}
    tag(host, "key7", more="")
    assert len(tags(host)) == 50


def test_tags_are_no_settings(host: Host) -> None:
    """The time of the last change stays, and so do messages, leases and settings."""
    created = create(host, settings={"visibility_timeout_s": 9})
    host.send("a", "b")
    host.receive()
    host.advance(5_000)
    tag(host, team="red")
    view = host.do(commands.ShowQueue(queue=QUEUE))
    assert view.modified_at_ms == created.modified_at_ms
    assert host.counts() == (1, 1, 0)
    host.set_queue(delay_s=1)
    assert tags(host) == {"team": "red"}


# After a purge a queue rests, and after a deletion its name: to the millisecond, over restarts, and not for ever.


PURGE = commands.PurgeQueue(queue=QUEUE)
DELETE = commands.DeleteQueue(queue=QUEUE)


@pytest.fixture
def pausing(store: Store) -> Iterator[Host]:
    with store.open(purge_pause_s=PURGE_PAUSE_S, queue_name_pause_s=QUEUE_NAME_PAUSE_S) as opened:
        opened.create()
        yield opened


def test_a_refused_purge_begins_no_pause(pausing: Host) -> None:
    pausing.do(PURGE)
    pausing.advance(30_000)
    with pytest.raises(errors.PurgeInProgress):
        pausing.do(PURGE)
    pausing.advance(30_000)
    pausing.do(PURGE)


def test_queues_rest_alone(pausing: Host) -> None:
    pausing.create("a/other")
    pausing.do(PURGE)
    pausing.purge("a/other")
    pausing.do(DELETE)
    with pytest.raises(errors.QueueNotFound):
        pausing.do(PURGE)


def test_a_queue_of_a_used_name_has_no_past(pausing: Host) -> None:
    pausing.advance(1_000)
    pausing.do(DELETE)
    pausing.advance(60_000)
    pausing.create()
    pausing.advance(1)
    pausing.do(PURGE)
    pausing.do(DELETE)
    pausing.advance(60_000)
    pausing.create()
    pausing.do(PURGE)


@pytest.mark.parametrize("again", ["reopen", "crash"])
def test_pauses_survive(kept_store: Store, again: str) -> None:
    with kept_store.open(purge_pause_s=PURGE_PAUSE_S, queue_name_pause_s=QUEUE_NAME_PAUSE_S) as host:
        host.create()
        host.create("a/gone")
        host.do(PURGE)
        host.drop("a/gone")
        host.advance(59_999)
        getattr(host, again)()
        with pytest.raises(errors.PurgeInProgress):
            host.do(PURGE)
        with pytest.raises(errors.QueueDeletedRecently):
            host.create("a/gone")
        host.advance(1)
        host.do(PURGE)
        host.create("a/gone")


def test_pauses_are_as_long_as_they_are_set(kept_store: Store) -> None:
    """Each by its own option, and also those that were begun under another one."""
    with kept_store.open(purge_pause_s=5, queue_name_pause_s=7) as host:
        host.create()
        host.do(PURGE)
        host.advance(5_000)
        host.do(PURGE)
        host.do(DELETE)
        host.advance(6_999)
        with pytest.raises(errors.QueueDeletedRecently):
            host.create()
        host.advance(1)
        host.create()
        host.do(DELETE)
    with kept_store.open(purge_pause_s=PURGE_PAUSE_S) as host:
        host.create()
        host.do(DELETE)
        host.create()
