"""Clock steps and reboots: durations stay exact, and the times in replies follow the wall clock.

The tests use a `VirtualClock`; `tests/internals/proofs/test_clocks.py` steps the clock of a real process.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.api import Claims
from veilmq.testing import RunningServer, VirtualClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STEP_MS = 5 * DAY_MS


class Machine:
    """A machine with its clock and a server with its data in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.start()

    def start(self) -> None:
        self.server = RunningServer(data=self.folder, clock=self.clock).__enter__()

    def restart(self, meanwhile: Callable[[VirtualClock], object] = lambda clock: None) -> None:
        """Stop the server, call `meanwhile` with the clock, and start the server again."""
        self.server.stop()
        meanwhile(self.clock)
        self.start()

    def call(self, action: str, queue: str = "work", **members: Any) -> dict[str, Any]:
        return request_sqs(self.server, action, QueueUrl=f"{self.server.endpoint}/000000000000/{queue}", **members).body

    def receive(self, queue: str = "work", **members: Any) -> list[dict[str, Any]]:
        options = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"], **members}
        found: list[dict[str, Any]] = self.call("ReceiveMessage", queue, **options).get("Messages", [])
        return found

    def bodies(self, queue: str = "work") -> list[str]:
        """Return the bodies of all visible messages and leave them visible."""
        return [message["Body"] for message in self.receive(queue, VisibilityTimeout=0)]


def request_sqs(server: RunningServer, action: str, *, status: int = 200, **members: Any) -> SqsReply:
    """Return the reply to an SQS action after checking its status."""
    with ServiceClient(server.endpoint, JSON) as sqs:
        reply = sqs.request(action, **members)
    assert reply.status == status, reply
    return reply


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine whose server has a standard queue, a FIFO queue, and one with a retention period of a minute."""
    running = Machine(tmp_path / "store")
    try:
        request_sqs(running.server, "CreateQueue", QueueName="work")
        request_sqs(running.server, "CreateQueue", QueueName="work.fifo", Attributes={"FifoQueue": "true"})
        request_sqs(running.server, "CreateQueue", QueueName="brief", Attributes={"MessageRetentionPeriod": "60"})
        yield running
    finally:
        running.server.stop()


def _step_running(ms: int) -> Callable[[Machine], None]:
    return lambda machine: machine.clock.step_wall(ms)


def _step_and_restart(ms: int) -> Callable[[Machine], None]:
    def step(machine: Machine) -> None:
        machine.clock.step_wall(ms)
        machine.restart()

    return step


def _step_stopped(ms: int) -> Callable[[Machine], None]:
    return lambda machine: machine.restart(lambda clock: clock.step_wall(ms))


STEPS = {
    f"{direction} {name}": step(sign * STEP_MS)
    for direction, sign in (("forward", 1), ("backward", -1))
    for name, step in (("running", _step_running), ("restarted", _step_and_restart), ("stopped", _step_stopped))
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_durations_are_exact_across_a_step(machine: Machine, step: Callable[[Machine], None]) -> None:
    """Visibility timeouts and their maximum, delays, the deduplication window, and retention."""
    call, clock = machine.call, machine.clock
    call("SendMessage", MessageBody="held")
    (held,) = machine.receive(VisibilityTimeout=30)
    call("SendMessage", "brief", MessageBody="brief")
    call("SendMessage", MessageBody="delayed", DelaySeconds=45)
    once = {"MessageBody": "once", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first = call("SendMessage", "work.fifo", **once)["MessageId"]
    step(machine)
    machine.server.advance(29_999)
    assert machine.bodies() == []
    machine.server.advance(1)
    assert machine.bodies() == ["held"]
    (held,) = machine.receive(VisibilityTimeout=600)
    machine.server.advance(14_999)
    assert machine.bodies() == []
    machine.server.advance(1)
    assert machine.bodies() == ["delayed"]
    machine.server.advance(14_999)
    assert machine.bodies("brief") == ["brief"]
    machine.server.advance(1)
    assert machine.bodies("brief") == []
    call("ChangeMessageVisibility", ReceiptHandle=held["ReceiptHandle"], VisibilityTimeout=43_200 - 30)
    beyond = {"ReceiptHandle": held["ReceiptHandle"], "VisibilityTimeout": 43_200 - 29}  # a second
    call("ChangeMessageVisibility", status=400, **beyond)
    machine.server.advance(5 * 60_000 - 60_001)
    assert call("SendMessage", "work.fifo", **once)["MessageId"] == first
    machine.server.advance(1)
    assert call("SendMessage", "work.fifo", **once)["MessageId"] != first
    assert clock.now_ms() - clock.wall_ms() in {-STEP_MS, STEP_MS}


@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "backward"])
def test_a_long_poll_is_exact_across_a_step(machine: Machine, sign: int) -> None:
    """It gets a delayed message when it becomes visible, and times out when its wait is over."""
    machine.call("SendMessage", MessageBody="delayed", DelaySeconds=10)
    with ThreadPoolExecutor(2) as pool:
        polls = [pool.submit(machine.receive, queue, WaitTimeSeconds=20) for queue in ("work", "brief")]
        machine.server.wait_until(lambda: machine.server.parked == 2)
        machine.clock.step_wall(sign * STEP_MS)
        machine.server.advance(9_999)
        assert machine.server.parked == 2
        machine.server.advance(1)
        assert [message["Body"] for message in polls[0].result(PATIENCE_S)] == ["delayed"]
        machine.server.advance(9_999)
        assert machine.server.parked == 1
        machine.server.advance(1)
        assert polls[1].result(PATIENCE_S) == []


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_claim_survives_a_step(machine: Machine, step: Callable[[Machine], None]) -> None:
    """It reads the same messages with the same times, and they become visible when its hold time ends."""
    call = machine.call
    for body in ("a", "b"):
        call("SendMessage", MessageBody=body)
    claims = Claims(machine.server.endpoint, "work")
    epoch = claims.open("reader", consumer="one", hold_s=3_600, lease_s=60).epoch
    claims.claim("reader", epoch=epoch, number=1, messages_max=10)
    before = list(claims.read("reader", number=1))
    step(machine)
    claims = Claims(machine.server.endpoint, "work")
    assert list(claims.read("reader", number=1)) == before
    machine.server.advance(3_600_000 - 1)
    assert machine.bodies() == []
    machine.server.advance(1)
    assert machine.bodies() == ["a", "b"]


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_times_follow_the_wall_clock(machine: Machine, step: Callable[[Machine], None]) -> None:
    """In received messages, queue attributes, leases, and message ages; all shift by the same difference."""
    call, clock = machine.call, machine.clock
    call("SendMessage", MessageBody="seen")
    machine.server.advance(1_000)
    step(machine)
    machine.server.advance(1_000)
    now_ms = clock.wall_ms()
    assert clock.shown_ms() == now_ms
    (seen,) = machine.receive(VisibilityTimeout=30)
    assert int(seen["Attributes"]["SentTimestamp"]) == now_ms - 2_000
    assert int(seen["Attributes"]["ApproximateFirstReceiveTimestamp"]) == now_ms
    attributes = call("GetQueueAttributes", AttributeNames=["All"])["Attributes"]
    assert int(attributes["CreatedTimestamp"]) == (now_ms - 2_000) // 1_000
    assert int(attributes["LastModifiedTimestamp"]) == (now_ms - 2_000) // 1_000
    (lease,) = request_v1(machine.server, "GET", "/v1/leases/-/work")[1]["leases"]
    assert (lease["received_at_ms"], lease["visible_at_ms"]) == (now_ms, now_ms + 30_000)
    (message,) = request_v1(machine.server, "GET", "/v1/messages/-/work")[1]["messages"]
    assert (message["sent_at_ms"], message["visible_at_ms"]) == (now_ms - 2_000, now_ms + 30_000)
    metrics = get(machine.server, "/metrics")[1]
    assert 'oldest_message_age_seconds{queue="000000000000/work"} 2.0' in metrics


@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "backward"])
def test_times_follow_the_wall_clock_in_listing_console_and_command_line(machine: Machine, sign: int) -> None:
    """Counts in the queue history from before the step keep their distance from later ones."""
    machine.call("SendMessage", MessageBody="seen")
    request_v1(machine.server, "GET", "/v1/queues/-?names=work")
    machine.clock.step_wall(sign * STEP_MS)
    machine.server.advance(1_000)
    now_ms = machine.clock.wall_ms()
    (work,) = request_v1(machine.server, "GET", "/v1/queues/-?names=work")[1]["queues"]
    assert (work["oldest_sent_at_ms"], work["counted_at_ms"]) == (now_ms - 1_000, now_ms)
    assert (work["history"][0], work["history"][-1]) == ([now_ms - 1_000, 1], [now_ms, 1])
    sent = datetime.fromtimestamp(now_ms / 1_000 - 1, UTC)
    for page in ("queues/000000000000/work", "queues/000000000000/work/messages", "health"):
        assert f"{sent:%Y-%m-%dT%H:%M:%SZ}" in get(machine.server, f"/console/{page}")[1]
    command = [sys.executable, "-m", "veilmq", "queue", "show", "work", "--endpoint", machine.server.endpoint]
    assert f"{sent:%Y-%m-%d %H:%M:%S} UTC" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _reboot(machine: Machine, *, before: bool, now: bool) -> None:
    """Reboot with a message in flight; the clock is synchronised if `before`, and after the reboot if `now`."""
    machine.clock.synchronised = before
    machine.call("SendMessage", MessageBody="kept")
    (_,) = machine.receive(VisibilityTimeout=2 * 3_600)

    def reboot(clock: VirtualClock) -> None:
        clock.reboot(STEP_MS)
        clock.synchronised = now

    machine.restart(reboot)


def test_with_synchronised_clocks_all_time_counts_across_a_reboot(machine: Machine) -> None:
    """After five days the message is past its retention period of four."""
    _reboot(machine, before=True, now=True)
    assert machine.bodies() == []
    assert get(machine.server, "/health/ready") == (200, "ready\n")
    machine.call("SendMessage", MessageBody="new")
    assert machine.bodies() == ["new"]


@pytest.mark.parametrize(("before", "now"), [(True, False), (False, True), (False, False)])
def test_with_a_doubtful_clock_time_across_a_reboot_is_held_back(machine: Machine, before: bool, now: bool) -> None:
    """Of five days, one hour counts; readiness, the metrics and the console's health page state the rest.

    Nothing is held back any more when the clock is set right.
    """
    _reboot(machine, before=before, now=now)
    status, text = get(machine.server, "/health/ready")
    assert (status, text.splitlines()[0]) == (200, "degraded")
    assert text.splitlines()[1].startswith("4 days and 23:00:00 h is held back")
    assert f"veilmq_store_time_held_back_seconds {(STEP_MS - HOUR_MS) // 1_000}" in get(machine.server, "/metrics")[1]
    assert "4 days and 23:00:00 h is held back" in get(machine.server, "/console/health")[1]
    machine.server.advance(HOUR_MS - 1)
    assert machine.bodies() == []
    machine.server.advance(1)
    assert machine.bodies() == ["kept"], "two hours of lease, one down and one since"
    machine.clock.step_wall(HOUR_MS - STEP_MS)
    assert get(machine.server, "/health/ready") == (200, "ready\n")


@pytest.mark.parametrize("synchronised", [True, False])
def test_without_a_boot_id_each_start_counts_as_a_reboot(machine: Machine, synchronised: bool) -> None:
    """As on macOS. All time counts if the clock is synchronised at both ends."""
    machine.clock.boot_id, machine.clock.synchronised = "", synchronised
    machine.restart()
    machine.call("SendMessage", MessageBody="kept")
    machine.restart(lambda clock: clock.step_wall(STEP_MS))
    assert machine.bodies() == ([] if synchronised else ["kept"])
    assert get(machine.server, "/health/ready")[1].startswith(
        "ready" if synchronised else "degraded\n4 days and 23:00:00 h"
    )


def test_held_back_time_is_applied_when_the_clock_is_synchronised(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    _reboot(machine, before=True, now=False)
    machine.server.advance(60_000)
    machine.clock.synchronised = True
    machine.server.advance(60_000)
    assert get(machine.server, "/health/ready") == (200, "ready\n")
    assert machine.clock.now_ms() == machine.clock.wall_ms()
    assert machine.bodies() == [], "past its retention"
    assert "4 days and 23:00:00 h that was held back is applied" in caplog.text
    machine.restart()
    assert machine.clock.now_ms() == machine.clock.wall_ms()


def test_held_back_time_of_an_unsynchronised_clock_waits_for_trust(machine: Machine) -> None:
    """If the clock was not synchronised before the reboot, only the command "trust" applies it, and permanently."""
    _reboot(machine, before=False, now=True)
    machine.server.advance(60_000)
    assert get(machine.server, "/health/ready")[1].startswith("degraded\n4 days and 23:00:00 h")
    machine.restart()
    assert get(machine.server, "/health/ready")[1].startswith("degraded\n4 days and 23:00:00 h")
    trusted = Api(machine.server).post("/api/clock/trust", {})
    assert trusted["message"] == "4 days and 23:00:00 h that was held back is applied."
    assert get(machine.server, "/health/ready") == (200, "ready\n")
    assert machine.bodies() == [], "past its retention"
    machine.restart()
    assert get(machine.server, "/health/ready") == (200, "ready\n")
    assert machine.clock.now_ms() == machine.clock.wall_ms()
    assert Api(machine.server).post("/api/clock/trust", {})["message"] == "The clock is trusted: nothing is held back."


def test_times_of_move_tasks_and_claims_follow_the_wall_clock(machine: Machine) -> None:
    server, arn = machine.server, "arn:aws:sqs:us-east-1:000000000000:"
    redrive = {"deadLetterTargetArn": f"{arn}brief", "maxReceiveCount": 1}
    machine.call("SetQueueAttributes", Attributes={"RedrivePolicy": json.dumps(redrive)})
    machine.clock.step_wall(STEP_MS)
    server.advance(60_000)
    now_ms = machine.clock.wall_ms()
    request_sqs(server, "StartMessageMoveTask", SourceArn=f"{arn}brief")
    tasks = request_sqs(server, "ListMessageMoveTasks", SourceArn=f"{arn}brief").body["Results"]
    assert [each["StartedTimestamp"] for each in tasks] == [now_ms]
    machine.call("SendMessage", MessageBody="a")
    machine.call("SendMessage", "work.fifo", MessageBody="b", MessageGroupId="g", MessageDeduplicationId="d")
    claims = Claims(server.endpoint, "work.fifo")
    machine.receive("work.fifo", VisibilityTimeout=50)
    epoch = claims.open("reader", consumer="one").epoch
    assert claims.claim("reader", epoch=epoch, number=1, messages_max=10).next_due_ms == now_ms + 50_000
    claims = Claims(server.endpoint, "work")
    epoch = claims.open("reader", consumer="one", lease_s=60, hold_s=3_600).epoch
    claims.claim("reader", epoch=epoch, number=1, messages_max=10)
    (source,) = claims.sources()
    assert [claim.bound_at_ms for claim in source.claims] == [now_ms]
    assert (source.lease_until_ms, source.hold_until_ms) == (now_ms + 60_000, now_ms + 3_600_000)
    assert _claimed_times(claims) == (now_ms, now_ms)
    machine.clock.step_wall(-STEP_MS)
    assert _claimed_times(claims) == (now_ms, now_ms), "as of the claim"
    (source,) = claims.sources()
    assert [claim.bound_at_ms for claim in source.claims] == [now_ms - STEP_MS], "shifted, so that its age is right"
    for step_ms in (0, 2 * STEP_MS):
        machine.clock.step_wall(step_ms)
        assert 'oldest_claim_age_seconds{queue="000000000000/work"} 0.0' in get(server, "/metrics")[1]


def _claimed_times(claims: Claims) -> tuple[int, int]:
    """Return when the only message of a claim was sent and received."""
    (batch,) = claims.read("reader", number=1)
    (row,) = batch.to_pylist()
    sent_ms, received_ms = (round(row[name].timestamp() * 1_000) for name in ("sent_at", "received_at"))
    return sent_ms, received_ms


def test_times_in_smq_follow_the_wall_clock(machine: Machine) -> None:
    """Of received, peeked and changed messages, of topics, and of published messages in queues."""
    server = machine.server
    raw.smq_request(server, "PUT", "/topics/news", "<Topic/>")
    endpoint = "<Endpoint>acs:mns:us-east-1:000000000000:queues/work</Endpoint>"
    raw.smq_request(server, "PUT", "/topics/news/subscriptions/one", f"<Subscription>{endpoint}</Subscription>")
    machine.clock.step_wall(-STEP_MS)
    server.advance(2_000)
    now_ms = machine.clock.wall_ms()
    raw.smq_request(server, "POST", "/topics/news/messages", raw.message("a"))
    peeked = raw.smq_request(server, "GET", "/queues/work/messages?peekonly=true")
    assert peeked.text("EnqueueTime") == str(now_ms)
    assert f"<PublishTime>{now_ms}</PublishTime>" in peeked.body.replace("&lt;", "<").replace("&gt;", ">")
    server.advance(1_000)
    got = raw.smq_request(server, "GET", "/queues/work/messages")
    times = [got.text(name) for name in ("EnqueueTime", "FirstDequeueTime", "NextVisibleTime")]
    assert times == [str(now_ms), str(now_ms + 1_000), str(now_ms + 31_000)]
    change = f"/queues/work/messages?receiptHandle={got.text('ReceiptHandle')}&visibilityTimeout=60"
    assert raw.smq_request(server, "PUT", change).text("NextVisibleTime") == str(now_ms + 61_000)
    assert raw.smq_request(server, "GET", "/topics/news").text("CreateTime") == str((now_ms - 2_000) // 1_000)


def test_the_event_log_records_wall_times_as_of_writing(tmp_path: Path) -> None:
    """Durations are exact even when steps come between; rows from before a step do not change."""
    clock = VirtualClock()
    with RunningServer(clock=clock, events_to=str(tmp_path)) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("work")
        client.send("work", "a")
        start_ms = clock.wall_ms()
        (late,) = client.receive("work", timeout_s=10)
        server.advance(seconds=10)
        clock.step_wall(HOUR_MS)
        client.receive("work", timeout_s=600)
        clock.step_wall(STEP_MS - HOUR_MS)
        server.advance(seconds=5)
        with suppress(ClientError):
            client.delete("work", late.receipt)
        assert urllib3.request("POST", f"{server.admin_endpoint}/events/flush").status == 200
        table = dataset.dataset(tmp_path, partitioning="hive").to_table()
    rows = {row["outcome"]: row for row in table.to_pylist()}
    times = {
        outcome: tuple(
            round(row[name].timestamp() * 1_000) - start_ms for name in ("sent_at", "received_at", "closed_at")
        )
        for outcome, row in rows.items()
    }
    assert times == {
        "expired": (HOUR_MS, HOUR_MS, HOUR_MS + 10_000),
        "late_deleted": (STEP_MS, STEP_MS, STEP_MS + 15_000),
    }
    assert {outcome: row["held_ms"] for outcome, row in rows.items()} == {"expired": 10_000, "late_deleted": 15_000}
