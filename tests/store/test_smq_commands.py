"""Commands of the engine that only SMQ uses: send options, bounded leases, queue defaults and account settings."""

from typing import Any

import msgspec
import pytest

from tests.store.host import QUEUE, Host, message
from tests.store.postgres_host import on_sqlite
from veilmq.core import commands, errors
from veilmq.core.commands import SendOptions, SentMessage, SetAccount, ShowAccount, VisibilityChange
from veilmq.core.errors import ReceiptState
from veilmq.core.limits import QUEUE_NAME_PAUSE_S
from veilmq.core.messages import NewMessage
from veilmq.core.settings import AccountSettings

RECEIPTS = SendOptions(receipts=True)
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "fair": ({}, {"group": "g"}),
    "fifo": ({"fifo": True}, {"group": "g", "dedup_id": "d"}),
}


def send(
    host: Host, *messages: NewMessage, options: SendOptions | None = RECEIPTS
) -> list[SentMessage | errors.VeilmqError]:
    sent: list[SentMessage | errors.VeilmqError] = host.put(*messages, options=options)
    return sent


def only_sent(host: Host, new: NewMessage, options: SendOptions = RECEIPTS) -> SentMessage:
    (sent,) = send(host, new, options=options)
    assert isinstance(sent, SentMessage)
    return sent


@pytest.mark.parametrize("settings", [{}, {"fifo": True}], ids=["standard", "fifo"])
def test_an_all_or_nothing_batch_stores_all_messages_or_none(host: Host, settings: dict[str, Any]) -> None:
    host.create(message_bytes_max=1_024, **settings)
    options = SendOptions(all_or_nothing=True)
    good = [message(body, group="g", dedup_id=body) for body in "abc"]
    with pytest.raises(errors.MessageTooLong) as refused:
        send(host, *good, message("x" * 1_025, group="g", dedup_id="x"), options=options)
    assert refused.value.bytes_max == 1_024
    assert host.counts() == (0, 0, 0)
    sent = send(host, *good, options=options)
    assert len({each.id for each in sent if isinstance(each, SentMessage)}) == 3
    assert host.bodies(10) == ["a", "b", "c"]


def test_a_fifo_message_without_a_deduplication_id_is_never_a_duplicate(host: Host) -> None:
    host.create(fifo=True)
    options = SendOptions(dedup_id_optional=True)
    assert isinstance(send(host, message("a", group="g"))[0], errors.DeduplicationIdMissing)
    first, second = (only_sent(host, message("a", group="g"), options) for _ in range(2))
    assert first.id != second.id
    assert first.sequence is not None
    assert second.sequence is not None
    assert second.sequence > first.sequence
    third, fourth = (only_sent(host, message("a", group="g", dedup_id="d"), options) for _ in range(2))
    assert third.id == fourth.id
    assert host.bodies(10) == ["a", "a", "a"]
    assert isinstance(send(host, message("a"), options=options)[0], errors.GroupMissing)


def test_content_deduplication_also_applies_if_the_id_is_optional(host: Host) -> None:
    host.create(fifo=True, content_deduplication=True)
    first, second = (only_sent(host, message("a", group="g"), SendOptions(dedup_id_optional=True)) for _ in range(2))
    assert first.id == second.id


def _decode(new: NewMessage) -> NewMessage:
    if not new.body.startswith("coded "):
        raise errors.BodyUnreadable
    return msgspec.structs.replace(new, body=new.body.removeprefix("coded "))


@pytest.mark.parametrize("kind", list(KINDS))
def test_bodies_are_decoded_only_if_the_queue_is_set_to(host: Host, kind: str) -> None:
    settings, more = KINDS[kind]
    host.create(**settings)
    options = SendOptions(decode=_decode)
    send(host, message("coded a", **more), options=options)
    received = host.do(commands.Receive(queue=QUEUE, timeout_s=0))
    assert (received.messages[0].body, received.smq_base64) == ("coded a", False)
    host.delete(host.receive_one().receipt)
    host.set_queue(smq_base64=True)
    send(host, message("coded b", **{**more, **({"dedup_id": "e"} if "dedup_id" in more else {})}), options=options)
    received = host.do(commands.Receive(queue=QUEUE))
    assert (received.messages[0].body, received.smq_base64) == ("b", True)


def test_an_undecodable_body_is_refused(host: Host) -> None:
    """The size limit applies to the body as sent."""
    host.create(smq_base64=True, message_bytes_max=1_024)
    bad, good = message("a"), message("coded a")
    answers = send(host, bad, good, options=SendOptions(decode=_decode))
    assert [type(answer) for answer in answers] == [errors.BodyUnreadable, SentMessage]
    with pytest.raises(errors.BodyUnreadable):
        send(host, good, bad, options=SendOptions(decode=_decode, all_or_nothing=True))
    assert host.counts() == (1, 0, 0)
    assert isinstance(
        send(host, message("coded " + "x" * 1_020), options=SendOptions(decode=_decode))[0], errors.MessageTooLong
    )


def test_a_repeated_receive_attempt_returns_the_base64_setting(host: Host) -> None:
    host.create(fifo=True, smq_base64=True)
    send(host, message("a", group="g", dedup_id="a"), options=None)
    for _ in range(2):
        assert host.do(commands.Receive(queue=QUEUE, attempt_id="t")).smq_base64


@pytest.fixture(params=list(KINDS))
def leased(host: Host, request: pytest.FixtureRequest) -> tuple[Host, str]:
    settings, fields = KINDS[request.param]
    host.create(**settings)
    send(host, message("a", **fields))
    return host, host.receive_one().receipt


def test_the_lease_limit_is_that_of_the_command(leased: tuple[Host, str]) -> None:
    host, receipt = leased
    host.advance(1_000)
    change = commands.ChangeVisibility(
        queue=QUEUE, changes=(VisibilityChange(receipt=receipt, timeout_s=59),), lease_s_max=60
    )
    assert host.do(change)[0].state is ReceiptState.LIVE
    longer = msgspec.structs.replace(change, changes=(VisibilityChange(receipt=receipt, timeout_s=60),))
    assert isinstance(host.do(longer)[0], errors.LeaseTooLong)
    assert host.due_ms() == host.clock.now_ms() + 59_000


def test_defaults_apply_to_new_queues_only(host: Host) -> None:
    create = commands.CreateQueue(
        queue=QUEUE, settings={"delay_s": 7}, defaults={"delay_s": 9, "message_bytes_max": 65_536}
    )
    view = host.do(create)
    assert (view.is_new, view.settings.delay_s, view.settings.message_bytes_max) == (True, 7, 65_536)
    again = host.do(msgspec.structs.replace(create, defaults={"message_bytes_max": 1_024}))
    assert (again.is_new, again.settings) == (False, view.settings)
    assert not host.do(commands.ShowQueue(queue=QUEUE)).is_new
    with pytest.raises(errors.QueueExists):
        host.do(msgspec.structs.replace(create, settings={"delay_s": 9}))


def test_a_deleted_name_can_be_reused_at_once() -> None:
    with on_sqlite(None).open(queue_name_pause_s=QUEUE_NAME_PAUSE_S) as host:
        host.create()
        host.drop()
        with pytest.raises(errors.QueueDeletedRecently):
            host.create()
        assert host.do(commands.CreateQueue(queue=QUEUE, skip_name_pause=True)).is_new


def test_a_listing_may_include_settings_and_counts(host: Host) -> None:
    for name in "abc":
        host.create(f"1/{name}")
    host.send("x", "y", queue="1/b")
    host.receive(1, queue="1/b")
    page = host.do(commands.ListQueues(account="1", after="a", count=1, views=True))
    (view,) = page.views
    assert (page.names, page.more, view.queue, view.is_new) == (["b"], True, "1/b", False)
    assert (view.counts.visible, view.counts.in_flight) == (1, 1)
    assert host.do(commands.ListQueues(account="1")).views == []


def test_account_settings_survive_restarts_and_crashes(durable: Host) -> None:
    assert durable.do(ShowAccount(account="1")) == AccountSettings()
    durable.do(SetAccount(account="1", settings=AccountSettings(logging_bucket="b")))
    durable.do(SetAccount(account="2", settings=AccountSettings(logging_bucket="c")))
    for accident in (durable.crash, durable.reopen):
        accident()
        assert durable.do(ShowAccount(account="1")).logging_bucket == "b"
        assert durable.do(ShowAccount(account="2")).logging_bucket == "c"
    durable.do(SetAccount(account="1", settings=AccountSettings()))
    assert durable.do(ShowAccount(account="1")) == AccountSettings()


RULES = '{"version":1,"classes":[{"name":"all","visibility_timeout_s":43200}],"default":0}'


@pytest.mark.parametrize("settings", [{"visibility_timeout_s": 43_200}, {"visibility_rules": RULES}], ids=list)
def test_the_lease_limit_of_a_long_poll_counts_from_its_request(host: Host, settings: dict[str, Any]) -> None:
    host.create(**settings)
    send(host, message("a"), message("b"), message("c"))
    now_ms = host.clock.now_ms()
    for lease_s_max, end_ms in ((None, now_ms + 43_200_000), (43_200, now_ms + 43_180_000), (60, now_ms + 40_000)):
        command = commands.Receive(queue=QUEUE, requested_at_ms=now_ms - 20_000, lease_s_max=lease_s_max)
        (got,) = host.do(command).messages
        assert got.visible_at_ms == end_ms
