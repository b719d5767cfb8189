"""Queues: creation, settings, tags, lists, deletion, and the pauses after a purge or a deletion."""

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


def test_a_new_queue_has_the_given_settings_and_defaults(host: Host) -> None:
    view = host.create(delay_s=7)
    assert view.queue == QUEUE
    assert view.settings == QueueSettings(delay_s=7)
    assert view.created_at_ms == view.modified_at_ms == host.clock.now_ms()
    assert host.do(commands.ShowQueue(queue=QUEUE)) == view


def test_creating_an_existing_queue_returns_it(host: Host) -> None:
    created = host.create(delay_s=7, retention_s=60)
    host.send("a", delay_s=0)
    host.advance(1)
    assert host.create() == created
    assert host.create(delay_s=7) == created
    assert host.counts() == (1, 0, 0)


def test_creating_an_existing_queue_with_another_setting_fails(host: Host) -> None:
    created = host.create(delay_s=7)
    with pytest.raises(errors.QueueExists) as refusal:
        host.create(delay_s=8)
    assert (refusal.value.queue, refusal.value.setting) == (QUEUE, "delay_s")
    with pytest.raises(errors.QueueExists):
        host.create(visibility_timeout_s=31)
    assert host.create() == created


def test_concurrent_edits_of_a_setting_both_apply(host: Host) -> None:
    host.create()
    host.advance(1_000)
    for edit in ("a{}".format, "b{}".format):
        host.do(commands.EditQueue(queue=QUEUE, setting="policy", edit=edit))
    view = host.do(commands.ShowQueue(queue=QUEUE))
    assert (view.settings.policy, view.modified_at_ms) == ("ba", host.clock.now_ms())


def test_a_refused_edit_changes_nothing(host: Host) -> None:
    created = host.create()
    reason = ValueError("no")

    def refuse(text: str) -> str:
        raise errors.EditRefused(reason)

    with pytest.raises(errors.EditRefused) as refusal:
        host.do(commands.EditQueue(queue=QUEUE, setting="policy", edit=refuse))
    assert refusal.value.reason is reason
    assert host.create() == created


def test_only_the_given_settings_change(host: Host) -> None:
    created = host.create(delay_s=7)
    host.advance(5)
    host.set_queue(visibility_timeout_s=9)
    view = host.do(commands.ShowQueue(queue=QUEUE))
    assert view.settings == QueueSettings(delay_s=7, visibility_timeout_s=9)
    assert (view.created_at_ms, view.modified_at_ms) == (created.created_at_ms, created.created_at_ms + 5)
    with pytest.raises(errors.QueueExists):
        host.create(visibility_timeout_s=30)


def test_conflicting_settings_are_refused(host: Host) -> None:
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


def test_queues_survive_restarts_and_crashes(durable: Host) -> None:
    durable.create(delay_s=7)
    durable.create("a/deleted")
    durable.set_queue(receive_wait_s=3)
    tag(durable, team="red")
    durable.drop("a/deleted")
    view = durable.do(commands.ShowQueue(queue=QUEUE))
    for again in (durable.crash, durable.reopen):
        again()
        assert durable.do(commands.ShowQueue(queue=QUEUE)) == view
        assert durable.do(commands.ListQueues(account="a")).names == []


@pytest.mark.parametrize("command", ON_A_QUEUE, ids=lambda command: type(command).__name__)
def test_commands_on_a_missing_queue_fail(host: Host, command: Command) -> None:
    for _ in range(2):
        with pytest.raises(errors.QueueNotFound) as refusal:
            host.do(command)
        assert refusal.value.queue == QUEUE
        host.create()
        host.drop()


def test_queues_are_listed_by_account_prefix_and_page(host: Host) -> None:
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


FIFTY = {f"key{number}": "" for number in range(50)}


def tags(host: Host) -> dict[str, str]:
    found: dict[str, str] = host.do(commands.ShowQueue(queue=QUEUE)).settings.tags
    return found


def tag(host: Host, *removed: str, **put: str) -> None:
    host.do(commands.TagQueue(queue=QUEUE, tags=put, removed=removed))


def create(host: Host, **given: Any) -> Any:
    return host.do(commands.CreateQueue(queue=QUEUE, **given))


def test_tags_are_set_and_removed(host: Host) -> None:
    host.create()
    assert tags(host) == {}
    tag(host, team="red", stage="test")
    tag(host, "nothing", team="blue")
    assert tags(host) == {"team": "blue", "stage": "test"}
    tag(host, "team", "stage", team="green")
    assert tags(host) == {"team": "green"}


def test_tags_are_set_only_by_the_creation_that_makes_the_queue(host: Host) -> None:
    made = create(host, tags={"team": "red"})
    assert (made.settings.tags, made.is_new) == ({"team": "red"}, True)
    created = replace(made, is_new=False)
    assert create(host, tags={"team": "blue"}) == created
    assert host.create() == created


def test_a_queue_has_at_most_fifty_tags(host: Host) -> None:
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


def test_tags_change_neither_settings_nor_messages(host: Host) -> None:
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


PURGE = commands.PurgeQueue(queue=QUEUE)
DELETE = commands.DeleteQueue(queue=QUEUE)


@pytest.fixture
def host_with_pauses(store: Store) -> Iterator[Host]:
    with store.open(purge_pause_s=PURGE_PAUSE_S, queue_name_pause_s=QUEUE_NAME_PAUSE_S) as opened:
        opened.create()
        yield opened


def test_each_queue_has_its_own_purge_pause(host_with_pauses: Host) -> None:
    host_with_pauses.create("a/other")
    host_with_pauses.do(PURGE)
    host_with_pauses.purge("a/other")
    host_with_pauses.do(DELETE)
    with pytest.raises(errors.QueueNotFound):
        host_with_pauses.do(PURGE)


def test_a_recreated_queue_can_be_purged_at_once(host_with_pauses: Host) -> None:
    host_with_pauses.advance(1_000)
    host_with_pauses.do(DELETE)
    host_with_pauses.advance(60_000)
    host_with_pauses.create()
    host_with_pauses.advance(1)
    host_with_pauses.do(PURGE)
    host_with_pauses.do(DELETE)
    host_with_pauses.advance(60_000)
    host_with_pauses.create()
    host_with_pauses.do(PURGE)


@pytest.mark.parametrize("again", ["reopen", "crash"])
def test_pauses_survive_restarts_and_crashes(durable_store: Store, again: str) -> None:
    with durable_store.open(purge_pause_s=PURGE_PAUSE_S, queue_name_pause_s=QUEUE_NAME_PAUSE_S) as host:
        host.create()
        host.create("a/deleted")
        host.do(PURGE)
        host.drop("a/deleted")
        host.advance(59_999)
        getattr(host, again)()
        with pytest.raises(errors.PurgeInProgress):
            host.do(PURGE)
        with pytest.raises(errors.QueueDeletedRecently):
            host.create("a/deleted")
        host.advance(1)
        host.do(PURGE)
        host.create("a/deleted")


def test_pauses_last_as_long_as_their_options(durable_store: Store) -> None:
    with durable_store.open(purge_pause_s=5, queue_name_pause_s=7) as host:
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
    with durable_store.open(purge_pause_s=PURGE_PAUSE_S) as host:
        host.create()
        host.do(DELETE)
        host.create()
