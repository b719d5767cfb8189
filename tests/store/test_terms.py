"""What SMQ asks of an engine beside SQS: terms of sends, lenient receipts, leases without an end, and more."""

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
    host: Host, *messages: NewMessage, terms: SendOptions | None = RECEIPTS
) -> list[SentMessage | errors.VeilmqError]:
    sent: list[SentMessage | errors.VeilmqError] = host.put(*messages, terms=terms)
    return sent


def only_sent(host: Host, new: NewMessage, terms: SendOptions = RECEIPTS) -> SentMessage:
    (sent,) = send(host, new, terms=terms)
    assert isinstance(sent, SentMessage)
    return sent


# What goes together.


@pytest.mark.parametrize("settings", [{}, {"fifo": True}], ids=["standard", "fifo"])
def test_messages_that_go_together_are_all_stored_or_none(host: Host, settings: dict[str, Any]) -> None:
    host.create(message_bytes_max=1_024, **settings)
    terms = SendOptions(all_or_nothing=True)
    good = [message(body, group="g", dedup_id=body) for body in "abc"]
    with pytest.raises(errors.MessageTooLong) as refused:
        send(host, *good, message("x" * 1_025, group="g", dedup_id="x"), terms=terms)
    assert refused.value.bytes_max == 1_024
    assert host.counts() == (0, 0, 0)
    sent = send(host, *good, terms=terms)
    assert len({each.id for each in sent if isinstance(each, SentMessage)}) == 3
    assert host.bodies(10) == ["a", "b", "c"]


# FIFO queues without deduplication.


def test_an_unrepeated_message_is_nobodys_duplicate(host: Host) -> None:
    """Without an id it is stored, and again; with one it may be a duplicate as ever."""
    host.create(fifo=True)
    terms = SendOptions(dedup_id_optional=True)
    assert isinstance(send(host, message("a", group="g"))[0], errors.DeduplicationIdMissing)
    first, second = (only_sent(host, message("a", group="g"), terms) for _ in range(2))
    assert first.id != second.id
    assert first.sequence is not None
    assert second.sequence is not None
    assert second.sequence > first.sequence
    third, fourth = (only_sent(host, message("a", group="g", dedup_id="d"), terms) for _ in range(2))
    assert third.id == fourth.id
    assert host.bodies(10) == ["a", "a", "a"]
    assert isinstance(send(host, message("a"), terms=terms)[0], errors.GroupMissing)


def test_a_queue_that_knows_messages_by_their_content_goes_on_to_do_so(host: Host) -> None:
    host.create(fifo=True, content_deduplication=True)
    first, second = (only_sent(host, message("a", group="g"), SendOptions(dedup_id_optional=True)) for _ in range(2))
    assert first.id == second.id


# Bodies that are decoded.


def _decode(new: NewMessage) -> NewMessage:
    if not new.body.startswith("coded "):
        raise errors.BodyUnreadable
    return msgspec.structs.replace(new, body=new.body.removeprefix("coded "))


@pytest.mark.parametrize("kind", list(KINDS))
def test_bodies_are_decoded_where_the_queue_is_set_to(host: Host, kind: str) -> None:
    """What is stored is what `decode` makes; receives tell the setting. Others take bodies as they are."""
    settings, more = KINDS[kind]
    host.create(**settings)
    terms = SendOptions(decode=_decode)
    send(host, message("coded a", **more), terms=terms)
    received = host.do(commands.Receive(queue=QUEUE, timeout_s=0))
    assert (received.messages[0].body, received.smq_base64) == ("coded a", False)
    host.delete(host.receive_one().receipt)
    host.set_queue(smq_base64=True)
    send(host, message("coded b", **{**more, **({"dedup_id": "e"} if "dedup_id" in more else {})}), terms=terms)
    received = host.do(commands.Receive(queue=QUEUE))
    assert (received.messages[0].body, received.smq_base64) == ("b", True)


def test_a_body_that_cannot_be_decoded_is_refused(host: Host) -> None:
    """Alone, or with all that go with it; and the size that counts is the one that was sent."""
    host.create(smq_base64=True, message_bytes_max=1_024)
    bad, good = message("a"), message("coded a")
    answers = send(host, bad, good, terms=SendOptions(decode=_decode))
    assert [type(answer) for answer in answers] == [errors.BodyUnreadable, SentMessage]
    with pytest.raises(errors.BodyUnreadable):
        send(host, good, bad, terms=SendOptions(decode=_decode, all_or_nothing=True))
    assert host.counts() == (1, 0, 0)
    assert isinstance(
        send(host, message("coded " + "x" * 1_020), terms=SendOptions(decode=_decode))[0], errors.MessageTooLong
    )


def test_an_attempt_tells_the_setting_too(host: Host) -> None:
    host.create(fifo=True, smq_base64=True)
    send(host, message("a", group="g", dedup_id="a"), terms=None)
    for _ in range(2):
        assert host.do(commands.Receive(queue=QUEUE, attempt_id="t")).smq_base64


# Receipts and leases.


@pytest.fixture(params=list(KINDS))
def leased(host: Host, request: pytest.FixtureRequest) -> tuple[Host, str]:
    settings, terms = KINDS[request.param]
    host.create(**settings)
    send(host, message("a", **terms))
    return host, host.receive_one().receipt


def test_a_lease_is_bounded_by_what_the_command_says(leased: tuple[Host, str]) -> None:
    host, receipt = leased
    host.advance(1_000)
    change = commands.ChangeVisibility(
        queue=QUEUE, changes=(VisibilityChange(receipt=receipt, timeout_s=59),), lease_s_max=60
    )
    assert host.do(change)[0].state is ReceiptState.LIVE
    longer = msgspec.structs.replace(change, changes=(VisibilityChange(receipt=receipt, timeout_s=60),))
    assert isinstance(host.do(longer)[0], errors.LeaseTooLong)
    assert host.due_ms() == host.clock.now_ms() + 59_000


# Queues and accounts.


def test_a_new_queue_is_new_and_has_the_defaults(host: Host) -> None:
    """They count where the settings say nothing, and tell no existing queue apart."""
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


def test_a_name_may_be_taken_at_once() -> None:
    with on_sqlite(None).open(queue_name_pause_s=QUEUE_NAME_PAUSE_S) as patient:
        patient.create()
        patient.drop()
        with pytest.raises(errors.QueueDeletedRecently):
            patient.create()
        assert patient.do(commands.CreateQueue(queue=QUEUE, skip_name_pause=True)).is_new


def test_a_listing_tells_what_its_queues_are(host: Host) -> None:
    for name in "abc":
        host.create(f"1/{name}")
    host.send("x", "y", queue="1/b")
    host.receive(1, queue="1/b")
    page = host.do(commands.ListQueues(account="1", after="a", count=1, views=True))
    (view,) = page.views
    assert (page.names, page.more, view.queue, view.is_new) == (["b"], True, "1/b", False)
    assert (view.counts.visible, view.counts.in_flight) == (1, 1)
    assert host.do(commands.ListQueues(account="1")).views == []


def test_an_account_has_what_it_has_set(kept: Host) -> None:
    assert kept.do(ShowAccount(account="1")) == AccountSettings()
    kept.do(SetAccount(account="1", settings=AccountSettings(logging_bucket="b")))
    kept.do(SetAccount(account="2", settings=AccountSettings(logging_bucket="c")))
    for accident in (kept.crash, kept.reopen):
        accident()
        assert kept.do(ShowAccount(account="1")).logging_bucket == "b"
        assert kept.do(ShowAccount(account="2")).logging_bucket == "c"
    kept.do(SetAccount(account="1", settings=AccountSettings()))
    assert kept.do(ShowAccount(account="1")) == AccountSettings()


RULES = '{"version":1,"classes":[{"name":"all","visibility_timeout_s":43200}],"default":0}'


@pytest.mark.parametrize("settings", [{"visibility_timeout_s": 43_200}, {"visibility_rules": RULES}], ids=list)
def test_the_lease_of_a_receive_that_waited_is_as_long_as_it_says(host: Host, settings: dict[str, Any]) -> None:
    """Where nothing bounds it; otherwise it ends twelve hours after the receive was asked for."""
    host.create(**settings)
    send(host, message("a"), message("b"), message("c"))
    now_ms = host.clock.now_ms()
    for lease_s_max, end_ms in ((None, now_ms + 43_200_000), (43_200, now_ms + 43_180_000), (60, now_ms + 40_000)):
        command = commands.Receive(queue=QUEUE, requested_at_ms=now_ms - 20_000, lease_s_max=lease_s_max)
        (got,) = host.do(command).messages
        assert got.visible_at_ms == end_ms
