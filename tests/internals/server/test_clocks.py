"""Clocks that step and machines that boot anew: nothing ends early or late, and times are shown by the wall clock.

The machine is a `VirtualClock`; `tests/internals/proofs/test_clocks.py` steps the clock of a real process.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import urllib3
from pyarrow import dataset

from tests.clients.smq import raw
from tests.internals.server.test_admin import get
from tests.server.http_host import PATIENCE_S
from tests.server.service_client import JSON, ServiceClient, SqsReply
from tests.server.test_admin_api import Api
from tests.server.test_claims import request_v1
from tests.store.postgres_host import making_database
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.api import Claims
from veilmq.server.stores import copy_store
from veilmq.store.clock import wall_s
from veilmq.testing import RunningServer, SystemClock, VirtualClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DAYS_MS = 5 * DAY_MS


class Stepped:
    """A server on `folder` that is stopped and started again on the same machine, `clock`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.start()

    def start(self) -> None:
        self.server = RunningServer(data=self.folder, clock=self.clock).__enter__()

    def restart(self, meanwhile: Callable[[VirtualClock], object] = lambda clock: None) -> None:
        """Stop it, have something happen to the machine, and start it again."""
        self.server.stop()
        meanwhile(self.clock)
        self.start()

    def call(self, action: str, queue: str = "work", **members: Any) -> dict[str, Any]:
        return asked(self.server, action, QueueUrl=f"{self.server.endpoint}/000000000000/{queue}", **members).body

    def receive(self, queue: str = "work", **members: Any) -> list[dict[str, Any]]:
        terms = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"], **members}
        found: list[dict[str, Any]] = self.call("ReceiveMessage", queue, **terms).get("Messages", [])
        return found

    def bodies(self, queue: str = "work") -> list[str]:
        """Return the bodies of what can be received, which stays so."""
        return [message["Body"] for message in self.receive(queue, VisibilityTimeout=0)]


def asked(server: RunningServer, action: str, *, status: int = 200, **members: Any) -> SqsReply:
    """Return what an action of SQS answers, with this status."""
    with ServiceClient(server.endpoint, JSON) as sqs:
        answer = sqs.request(action, **members)
    assert answer.status == status, answer
    return answer


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[Stepped]:
    """A server with a queue, a FIFO queue, and a queue whose messages stay for a minute."""
    running = Stepped(tmp_path / "store")
    try:
        asked(running.server, "CreateQueue", QueueName="work")
        asked(running.server, "CreateQueue", QueueName="work.fifo", Attributes={"FifoQueue": "true"})
        asked(running.server, "CreateQueue", QueueName="brief", Attributes={"MessageRetentionPeriod": "60"})
        yield running
    finally:
        running.server.stop()


def _running(ms: int) -> Callable[[Stepped], None]:
    return lambda stepped: stepped.clock.step_wall(ms)


def _restarted(ms: int) -> Callable[[Stepped], None]:
    def happen(stepped: Stepped) -> None:
        stepped.clock.step_wall(ms)
        stepped.restart()

    return happen


def _down(ms: int) -> Callable[[Stepped], None]:
    return lambda stepped: stepped.restart(lambda clock: clock.step_wall(ms))


STEPS = {
    f"{direction} {name}": happen(sign * DAYS_MS)
    for direction, sign in (("forward", 1), ("backward", -1))
    for name, happen in (("running", _running), ("restarted", _restarted), ("down", _down))
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_everything_ends_at_its_instant(stepped: Stepped, step: Callable[[Stepped], None]) -> None:
    """Leases, delays, the deduplication window, retention and the longest lease, to the millisecond."""
    call, clock = stepped.call, stepped.clock
    call("SendMessage", MessageBody="held")
    (held,) = stepped.receive(VisibilityTimeout=30)
    call("SendMessage", "brief", MessageBody="brief")
    call("SendMessage", MessageBody="delayed", DelaySeconds=45)
    once = {"MessageBody": "once", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first = call("SendMessage", "work.fifo", **once)["MessageId"]
    step(stepped)
    stepped.server.advance(29_999)
    assert stepped.bodies() == []
    stepped.server.advance(1)
    assert stepped.bodies() == ["held"]
    (held,) = stepped.receive(VisibilityTimeout=600)
    stepped.server.advance(14_999)
    assert stepped.bodies() == []
    stepped.server.advance(1)
    assert stepped.bodies() == ["delayed"]
    stepped.server.advance(14_999)
    assert stepped.bodies("brief") == ["brief"]
    stepped.server.advance(1)
    assert stepped.bodies("brief") == []
    call("ChangeMessageVisibility", ReceiptHandle=held["ReceiptHandle"], VisibilityTimeout=43_200 - 30)
    beyond = {"ReceiptHandle": held["ReceiptHandle"], "VisibilityTimeout": 43_200 - 29}  # a second
    call("ChangeMessageVisibility", status=400, **beyond)
    stepped.server.advance(5 * 60_000 - 60_001)
    assert call("SendMessage", "work.fifo", **once)["MessageId"] == first
    stepped.server.advance(1)
    assert call("SendMessage", "work.fifo", **once)["MessageId"] != first
    assert clock.now_ms() - clock.wall_ms() in {-DAYS_MS, DAYS_MS}


@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "backward"])
def test_a_parked_receive_waits_out_its_time(stepped: Stepped, sign: int) -> None:
    """It gets a message when that is due, or nothing when its wait has passed, to the millisecond."""
    stepped.call("SendMessage", MessageBody="delayed", DelaySeconds=10)
    with ThreadPoolExecutor(2) as pool:
        polls = [pool.submit(stepped.receive, queue, WaitTimeSeconds=20) for queue in ("work", "brief")]
        stepped.server.wait_until(lambda: stepped.server.parked == 2)
        stepped.clock.step_wall(sign * DAYS_MS)
        stepped.server.advance(9_999)
        assert stepped.server.parked == 2
        stepped.server.advance(1)
        assert [message["Body"] for message in polls[0].result(PATIENCE_S)] == ["delayed"]
        stepped.server.advance(9_999)
        assert stepped.server.parked == 1
        stepped.server.advance(1)
        assert polls[1].result(PATIENCE_S) == []


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_claim_goes_on(stepped: Stepped, step: Callable[[Stepped], None]) -> None:
    """It gives the same messages with the same times, and they come back when its hold has passed."""
    call = stepped.call
    for body in ("a", "b"):
        call("SendMessage", MessageBody=body)
    claims = Claims(stepped.server.endpoint, "work")
    epoch = claims.open("reader", consumer="one", hold_s=3_600, lease_s=60).epoch
    claims.claim("reader", epoch=epoch, number=1, messages_max=10)
    before = list(claims.read("reader", number=1))
    step(stepped)
    claims = Claims(stepped.server.endpoint, "work")
    assert list(claims.read("reader", number=1)) == before
    stepped.server.advance(3_600_000 - 1)
    assert stepped.bodies() == []
    stepped.server.advance(1)
    assert stepped.bodies() == ["a", "b"]


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_times_are_shown_by_the_wall_clock(stepped: Stepped, step: Callable[[Stepped], None]) -> None:
    """In receives, settings, looks and the ages of metrics, all of them beside the same difference."""
    call, clock = stepped.call, stepped.clock
    call("SendMessage", MessageBody="seen")
    stepped.server.advance(1_000)
    step(stepped)
    stepped.server.advance(1_000)
    now_ms = clock.wall_ms()
    assert clock.shown_ms() == now_ms
    (seen,) = stepped.receive(VisibilityTimeout=30)
    assert int(seen["Attributes"]["SentTimestamp"]) == now_ms - 2_000
    assert int(seen["Attributes"]["ApproximateFirstReceiveTimestamp"]) == now_ms
    attributes = call("GetQueueAttributes", AttributeNames=["All"])["Attributes"]
    assert int(attributes["CreatedTimestamp"]) == (now_ms - 2_000) // 1_000
    assert int(attributes["LastModifiedTimestamp"]) == (now_ms - 2_000) // 1_000
    (lease,) = request_v1(stepped.server, "GET", "/v1/leases/-/work")[1]["leases"]
    assert (lease["received_at_ms"], lease["visible_at_ms"]) == (now_ms, now_ms + 30_000)
    (message,) = request_v1(stepped.server, "GET", "/v1/messages/-/work")[1]["messages"]
    assert (message["sent_at_ms"], message["visible_at_ms"]) == (now_ms - 2_000, now_ms + 30_000)
    metrics = get(stepped.server, "/metrics")[1]
    assert 'oldest_message_age_seconds{queue="000000000000/work"} 2.0' in metrics


@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "backward"])
def test_the_listing_the_console_and_the_command_line_show_them_so_too(stepped: Stepped, sign: int) -> None:
    """And what the listing has counted before the step stays, one second before what it counts now."""
    stepped.call("SendMessage", MessageBody="seen")
    request_v1(stepped.server, "GET", "/v1/queues/-?names=work")
    stepped.clock.step_wall(sign * DAYS_MS)
    stepped.server.advance(1_000)
    now_ms = stepped.clock.wall_ms()
    (work,) = request_v1(stepped.server, "GET", "/v1/queues/-?names=work")[1]["queues"]
    assert (work["oldest_sent_at_ms"], work["counted_at_ms"]) == (now_ms - 1_000, now_ms)
    assert (work["history"][0], work["history"][-1]) == ([now_ms - 1_000, 1], [now_ms, 1])
    sent = datetime.fromtimestamp(now_ms / 1_000 - 1, UTC)
    for page in ("queues/000000000000/work", "queues/000000000000/work/messages", "health"):
        assert f"{sent:%Y-%m-%dT%H:%M:%SZ}" in get(stepped.server, f"/console/{page}")[1]
    command = [sys.executable, "-m", "veilmq", "queue", "show", "work", "--endpoint", stepped.server.endpoint]
    assert f"{sent:%Y-%m-%d %H:%M:%S} UTC" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextmanager
def _after_another_boot(stepped: Stepped, *, before: bool, now: bool) -> Iterator[None]:
    stepped.clock.synchronised = before
    stepped.call("SendMessage", MessageBody="kept")
    (_,) = stepped.receive(VisibilityTimeout=2 * 3_600)

    def reboot(clock: VirtualClock) -> None:
        clock.reboot(DAYS_MS)
        clock.synchronised = now

    stepped.restart(reboot)
    yield


def test_another_boot_with_synchronised_clocks_ends_what_is_over(stepped: Stepped) -> None:
    """Five days later the message is past its retention of four."""
    with _after_another_boot(stepped, before=True, now=True):
        assert stepped.bodies() == []
        assert get(stepped.server, "/health/ready") == (200, "ready\n")
        stepped.call("SendMessage", MessageBody="new")
        assert stepped.bodies() == ["new"]


@pytest.mark.parametrize(("before", "now"), [(True, False), (False, True), (False, False)])
def test_another_boot_with_a_clock_that_is_doubted_ends_nothing_early(
    stepped: Stepped, before: bool, now: bool
) -> None:
    """An hour has passed for the store, of five days; the health page, the log and a metric say what is held back."""
    with _after_another_boot(stepped, before=before, now=now):
        status, text = get(stepped.server, "/health/ready")
        assert (status, text.splitlines()[0]) == (200, "degraded")
        assert text.splitlines()[1].startswith("4 days and 23:00:00 h is held back")
        assert (
            f"veilmq_store_time_held_back_seconds {(DAYS_MS - HOUR_MS) // 1_000}" in get(stepped.server, "/metrics")[1]
        )
        assert "4 days and 23:00:00 h is held back" in get(stepped.server, "/console/health")[1]
        stepped.server.advance(HOUR_MS - 1)
        assert stepped.bodies() == []
        stepped.server.advance(1)
        assert stepped.bodies() == ["kept"], "two hours of lease, one down and one since"


@pytest.mark.parametrize("synchronised", [True, False])
def test_a_system_without_a_boot_id_boots_anew_with_each_start(stepped: Stepped, synchronised: bool) -> None:
    """As macOS, whatever its boot clock says: all of the time is applied where both ends are synchronised."""
    stepped.clock.boot_id, stepped.clock.synchronised = "", synchronised
    stepped.restart()
    stepped.call("SendMessage", MessageBody="kept")
    stepped.restart(lambda clock: clock.step_wall(DAYS_MS))
    assert stepped.bodies() == ([] if synchronised else ["kept"])
    assert get(stepped.server, "/health/ready")[1].startswith(
        "ready" if synchronised else "degraded\n4 days and 23:00:00 h"
    )


def test_what_is_held_back_is_applied_once_the_kernel_vouches_for_its_clock(
    stepped: Stepped, caplog: pytest.LogCaptureFixture
) -> None:
    with _after_another_boot(stepped, before=True, now=False):
        stepped.server.advance(60_000)
        stepped.clock.synchronised = True
        stepped.server.advance(10_000)
        assert get(stepped.server, "/health/ready") == (200, "ready\n")
        assert stepped.clock.now_ms() == stepped.clock.wall_ms()
        assert stepped.bodies() == [], "past its retention"
        assert "4 days and 23:00:00 h that was held back is applied" in caplog.text
        stepped.restart()
        assert stepped.clock.now_ms() == stepped.clock.wall_ms()


def test_what_is_held_back_waits_for_the_operator_where_nobody_vouched_before(stepped: Stepped) -> None:
    """Whatever the kernel says now; and once he has said it, it holds across restarts."""
    with _after_another_boot(stepped, before=False, now=True):
        stepped.server.advance(60_000)
        assert get(stepped.server, "/health/ready")[1].startswith("degraded\n4 days and 23:00:00 h")
        stepped.restart()
        assert get(stepped.server, "/health/ready")[1].startswith("degraded\n4 days and 23:00:00 h")
        trusted = Api(stepped.server).post("/api/clock/trust", {})
        assert trusted["message"] == "4 days and 23:00:00 h that was held back is applied."
        assert get(stepped.server, "/health/ready") == (200, "ready\n")
        assert stepped.bodies() == [], "past its retention"
        stepped.restart()
        assert get(stepped.server, "/health/ready") == (200, "ready\n")
        assert stepped.clock.now_ms() == stepped.clock.wall_ms()
        assert (
            Api(stepped.server).post("/api/clock/trust", {})["message"] == "The clock is trusted: nothing is held back."
        )


def test_times_of_tasks_readers_and_writers_are_shown_so_too(stepped: Stepped) -> None:
    server, arn = stepped.server, "arn:aws:sqs:us-east-1:000000000000:"
    redrive = {"deadLetterTargetArn": f"{arn}brief", "maxReceiveCount": 1}
    stepped.call("SetQueueAttributes", Attributes={"RedrivePolicy": json.dumps(redrive)})
    stepped.clock.step_wall(DAYS_MS)
    server.advance(60_000)
    now_ms = stepped.clock.wall_ms()
    asked(server, "StartMessageMoveTask", SourceArn=f"{arn}brief")
    tasks = asked(server, "ListMessageMoveTasks", SourceArn=f"{arn}brief").body["Results"]
    assert [each["StartedTimestamp"] for each in tasks] == [now_ms]
    stepped.call("SendMessage", MessageBody="a")
    stepped.call("SendMessage", "work.fifo", MessageBody="b", MessageGroupId="g", MessageDeduplicationId="d")
    claims = Claims(server.endpoint, "work.fifo")
    stepped.receive("work.fifo", VisibilityTimeout=50)
    epoch = claims.open("reader", consumer="one").epoch
    assert claims.claim("reader", epoch=epoch, number=1, messages_max=10).next_due_ms == now_ms + 50_000
    claims = Claims(server.endpoint, "work")
    epoch = claims.open("reader", consumer="one", lease_s=60, hold_s=3_600).epoch
    claims.claim("reader", epoch=epoch, number=1, messages_max=10)
    (source,) = claims.sources()
    assert [claim.bound_at_ms for claim in source.claims] == [now_ms]
    assert (source.lease_until_ms, source.hold_until_ms) == (now_ms + 60_000, now_ms + 3_600_000)
    assert _claimed_times(claims) == (now_ms, now_ms)
    stepped.clock.step_wall(-DAYS_MS)
    assert _claimed_times(claims) == (now_ms, now_ms), "as of its binding"
    (source,) = claims.sources()
    assert [claim.bound_at_ms for claim in source.claims] == [now_ms - DAYS_MS], "its age is right"
    assert 'oldest_claim_age_seconds{queue="000000000000/work"} 0.0' in get(server, "/metrics")[1]


def _claimed_times(claims: Claims) -> tuple[int, int]:
    """Return when the one message of a claim was sent and received."""
    (batch,) = claims.read("reader", number=1)
    (row,) = batch.to_pylist()
    sent_ms, received_ms = (round(row[name].timestamp() * 1_000) for name in ("sent_at", "received_at"))
    return sent_ms, received_ms


def test_times_are_shown_over_smq_too(stepped: Stepped) -> None:
    """In a receive, a peek, a change, the attributes of a queue, and where a topic's message is put into a queue."""
    server = stepped.server
    raw.smq_request(server, "PUT", "/topics/news", "<Topic/>")
    endpoint = "<Endpoint>acs:mns:us-east-1:000000000000:queues/work</Endpoint>"
    raw.smq_request(server, "PUT", "/topics/news/subscriptions/one", f"<Subscription>{endpoint}</Subscription>")
    stepped.clock.step_wall(-DAYS_MS)
    server.advance(2_000)
    now_ms = stepped.clock.wall_ms()
    raw.smq_request(server, "POST", "/topics/news/messages", raw.message("a"))
    peeked = raw.smq_request(server, "GET", "/queues/work/messages?peekonly=true")
    assert peeked.text("EnqueueTime") == str(now_ms)
    assert f"<PublishTime>{now_ms}</PublishTime>" in peeked.body.replace("&lt;", "<").replace("&gt;", ">")
    server.advance(1_000)
    got = raw.smq_request(server, "GET", "/queues/work/messages")
    shown = [got.text(name) for name in ("EnqueueTime", "FirstDequeueTime", "NextVisibleTime")]
    assert shown == [str(now_ms), str(now_ms + 1_000), str(now_ms + 31_000)]
    change = f"/queues/work/messages?receiptHandle={got.text('ReceiptHandle')}&visibilityTimeout=60"
    assert raw.smq_request(server, "PUT", change).text("NextVisibleTime") == str(now_ms + 61_000)
    assert raw.smq_request(server, "GET", "/topics/news").text("CreateTime") == str((now_ms - 2_000) // 1_000)


def test_a_row_of_the_event_log_has_the_times_of_its_writing(tmp_path: Path) -> None:
    """Also where the delete comes late, after a step: what it took is right, and earlier rows stay as they are."""
    clock = VirtualClock()
    with RunningServer(clock=clock, events_to=str(tmp_path)) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("work")
        client.send("work", "a")
        start_ms = clock.wall_ms()
        (late,) = client.receive("work", timeout_s=10)
        server.advance(seconds=10)
        client.receive("work", timeout_s=600)
        clock.step_wall(DAYS_MS)
        server.advance(seconds=5)
        with suppress(ClientError):
            client.delete("work", late.receipt)
        assert urllib3.request("POST", f"{server.admin_endpoint}/events/flush").status == 200
        table = dataset.dataset(tmp_path, partitioning="hive").to_table()
    rows = {row["outcome"]: row for row in table.to_pylist()}
    shown = {
        outcome: tuple(
            round(row[name].timestamp() * 1_000) - start_ms for name in ("sent_at", "received_at", "closed_at")
        )
        for outcome, row in rows.items()
    }
    assert shown == {"expired": (0, 0, 10_000), "late_deleted": (DAYS_MS, DAYS_MS, DAYS_MS + 15_000)}
    assert {outcome: row["held_ms"] for outcome, row in rows.items()} == {"expired": 10_000, "late_deleted": 15_000}


def test_a_copy_in_a_database_has_the_shown_times(stepped: Stepped, postgres_url: str) -> None:
    """So that retention, leases and delays, which go by the database's clock there, end when they would have here."""
    stepped.clock.step_wall(round(wall_s() * 1_000) - stepped.clock.wall_ms())
    sent_ms = stepped.clock.wall_ms()
    stepped.call("SendMessage", MessageBody="delayed", DelaySeconds=900)
    stepped.call("SendMessage", MessageBody="held")
    (held,) = stepped.receive(VisibilityTimeout=3_600)
    stepped.call("SendMessage", MessageBody="visible")
    stepped.server.stop()
    with making_database(postgres_url) as url:
        asyncio.run(copy_store(str(stepped.folder), url, clock=stepped.clock))
        with RunningServer(store=url, clock=SystemClock()) as stepped.server:
            attributes = stepped.call("GetQueueAttributes", AttributeNames=["All"])["Attributes"]
            counts = [attributes[f"ApproximateNumberOfMessages{which}"] for which in ("", "NotVisible", "Delayed")]
            assert counts == ["1", "1", "1"]
            (visible,) = stepped.receive()
            assert (visible["Body"], visible["Attributes"]["SentTimestamp"]) == ("visible", str(sent_ms))
            stepped.call("ChangeMessageVisibility", ReceiptHandle=held["ReceiptHandle"], VisibilityTimeout=0)
            assert stepped.bodies() == ["held"]
