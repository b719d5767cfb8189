"""Steps of the wall clock (by libfaketime) of a running and of a stopped server process.

The boot clock is that of the machine. A reboot is simulated by another boot id, mounted over that of the kernel if the
user may do so (`unshare`).
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.conftest import EVERYTHING, need
from tests.proofs.ledger import Refused, SqsCaller
from tests.proofs.served import ServedFolder
from tests.server.keys import SECRETS, written
from veilmq.client import SigningKey
from veilmq.client.api import Claims

pytestmark = pytest.mark.xdist_group("clocks")  # one parent process of all servers
LIBRARIES = ("lib*/faketime/libfaketimeMT.so.1", "lib*/*/faketime/libfaketimeMT.so.1")  # below /usr
BOOT_ID = "/proc/sys/kernel/random/boot_id"
MOUNT = f'mount --bind "$0" {BOOT_ID} && exec "$@"'
DAYS_S = 5 * 86_400
TOLERANCE_S = 60  # of a displayed time
QUEUE, FIFO = "work", "work.fifo"


class Machine:
    """A server in `folder` whose wall clock is `ahead_s` ahead of the real one."""

    def __init__(self, folder: Path, library: str, offset: Path, closing: contextlib.ExitStack) -> None:
        """Prepare the server; `offset` is the file with the clock's offset, `closing` closes the callers."""
        self._closing = closing
        self._offset = offset
        self.step(0)
        self.server = ServedFolder(folder)
        self.server.environment = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, ahead_s: int) -> None:
        self.ahead_s = ahead_s
        written = self._offset.with_suffix(".new")
        written.write_text(f"{ahead_s:+d}\n")
        written.replace(self._offset)

    def restart(self, how: Callable[[], object], *, meanwhile_s: int | None = None) -> None:
        how()
        if meanwhile_s is not None:
            self.step(meanwhile_s)
        self.server.start()

    def boot_as(self, boot_id: Path) -> None:
        self.server.prefix = ["unshare", "--mount", "--map-root-user", "sh", "-c", MOUNT, str(boot_id)]

    def caller(self, queue: str) -> SqsCaller:
        caller = SqsCaller(self.server.port, queue)
        self._closing.callback(caller.close)
        return caller

    def operator(self, method: str, path: str) -> str:
        with urllib3.PoolManager() as pool:
            return pool.request(method, self.server.admin_endpoint + path).data.decode()


@pytest.fixture(scope="module")
def offset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the offset file of all machines, so that their servers have one parent process."""
    return tmp_path_factory.mktemp("clock") / "offset"


@pytest.fixture
def machine(tmp_path: Path, offset: Path) -> Iterator[Machine]:
    found = [path for places in LIBRARIES for path in Path("/usr").glob(places)]
    need(found, "libfaketime (scripts/install-faketime.sh)")
    with contextlib.ExitStack() as closing:
        machine = Machine(tmp_path / "store", str(found[0]), offset, closing)
        machine.server.start()
        closing.callback(machine.server.stop)
        yield machine


class Content:
    """Messages, leases and claims stored before the clock steps, which must be there afterwards."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.plain, self.fifo, claimed = (machine.caller(name) for name in (QUEUE, FIFO, "claimed"))
        self.plain.call("CreateQueue", QueueName=QUEUE)
        self.fifo.call("CreateQueue", QueueName=FIFO, Attributes={"FifoQueue": "true"})
        claimed.call("CreateQueue", QueueName="claimed")
        self.claims = Claims(machine.server.endpoint, "claimed")
        for body in ("a", "b"):
            claimed.call("SendMessage", MessageBody=body)
        epoch = self.claims.open("reader", consumer="one").epoch
        self.claims.claim("reader", epoch=epoch, number=1, messages_max=10)
        self.claimed = list(self.claims.read("reader", number=1))
        self.plain.call("SendMessage", MessageBody="held")
        (held,) = self.receive(timeout_s=3_600)
        self.receipt: str = held["ReceiptHandle"]
        self.plain.call("SendMessage", MessageBody="delayed", DelaySeconds=900)
        self.plain.call("SendMessage", MessageBody="visible")
        self.sent_ms = time.time() * 1_000
        self.first = self.send_to_group()

    def receive(self, *, timeout_s: int = 0, wait_s: int = 0) -> list[dict[str, Any]]:
        options = {"VisibilityTimeout": timeout_s, "WaitTimeSeconds": wait_s, "MaxNumberOfMessages": 10}
        answer = self.plain.call("ReceiveMessage", MessageSystemAttributeNames=["All"], **options)
        found: list[dict[str, Any]] = answer.get("Messages", [])
        return found

    def send_to_group(self) -> str:
        """Send a message with one deduplication id; return the id of the stored one."""
        options = {"MessageGroupId": "group", "MessageDeduplicationId": "same"}
        message_id: str = self.fifo.call("SendMessage", MessageBody="once", **options)["MessageId"]
        return message_id

    def counts(self, caller: SqsCaller) -> list[int]:
        attributes = caller.call("GetQueueAttributes", AttributeNames=["All"])["Attributes"]
        return [int(attributes[f"ApproximateNumberOfMessages{which}"]) for which in ("", "NotVisible", "Delayed")]

    def check(self) -> None:
        """Assert that the content is unchanged, and that times are displayed by the present wall clock."""
        for caller in (self.plain, self.fifo):
            caller.close()
        assert self.counts(self.plain) == [1, 1, 1]
        (seen,) = self.receive()
        assert seen["Body"] == "visible"
        shown_s = int(seen["Attributes"]["SentTimestamp"]) / 1_000 - self.machine.ahead_s
        assert abs(shown_s - self.sent_ms / 1_000) < TOLERANCE_S
        assert self.send_to_group() == self.first  # a duplicate
        assert self.counts(self.fifo) == [1, 0, 0]
        held = {"ReceiptHandle": self.receipt}
        self.plain.call("ChangeMessageVisibility", VisibilityTimeout=36_000, **held)
        with pytest.raises(Refused, match="InvalidParameterValue"):  # the longest lease counts from the receive
            self.plain.call("ChangeMessageVisibility", VisibilityTimeout=43_200, **held)
        assert list(self.claims.read("reader", number=1)) == self.claimed


@pytest.mark.parametrize("step_s", [DAYS_S, -DAYS_S], ids=["forward", "backward"])
def test_a_step_of_the_clock_of_a_running_server_changes_nothing(machine: Machine, step_s: int) -> None:
    content = Content(machine)
    machine.step(step_s)
    content.check()
    for how in (machine.server.stop, machine.server.kill):
        machine.restart(how)
        content.check()


@pytest.mark.parametrize(
    "step_s", [pytest.param(DAYS_S, id="forward"), pytest.param(-DAYS_S, id="backward", marks=EVERYTHING)]
)
def test_a_step_of_the_clock_of_a_stopped_server_changes_nothing(machine: Machine, step_s: int) -> None:
    content = Content(machine)
    machine.restart(machine.server.stop, meanwhile_s=step_s)
    content.check()
    machine.restart(machine.server.kill, meanwhile_s=0)
    content.check()


def test_a_lease_ends_in_time_despite_steps_of_the_clock(machine: Machine) -> None:
    content = Content(machine)
    for received, step_s in ((2, DAYS_S), (4, -DAYS_S)):
        began_s = time.monotonic()
        (lease,) = content.receive(timeout_s=2)
        machine.step(step_s)
        (again,) = content.receive(wait_s=20)
        assert again["MessageId"] == lease["MessageId"]
        assert 2 <= time.monotonic() - began_s < 20
        assert again["Attributes"]["ApproximateReceiveCount"] == str(received)


def test_signatures_are_checked_by_the_present_wall_clock(machine: Machine, tmp_path: Path) -> None:
    credentials = written(tmp_path / "credentials.toml")
    machine.server.stop()
    machine.server.options += ["--credentials", str(credentials)]
    machine.server.start()
    for ahead_s in (0, DAYS_S):
        machine.step(ahead_s)
        for signed_s in (0, DAYS_S):
            status = _signed(machine.server.endpoint, datetime.now(UTC) + timedelta(seconds=signed_s))
            assert status == (200 if signed_s == ahead_s else 403)


def _signed(endpoint: str, at: datetime) -> int:
    key = SigningKey(id="AKIDOWNER", secret=SECRETS["AKIDOWNER"])
    headers = {"Host": endpoint.removeprefix("http://"), "X-Amz-Target": "AmazonSQS.ListQueues"}
    with urllib3.PoolManager(retries=False) as pool:
        return pool.request("POST", endpoint, body=b"{}", headers=key.sign("/", headers, b"{}", now=at)).status


def test_after_a_reboot_a_large_step_of_an_unsynchronised_clock_is_held_back(machine: Machine, tmp_path: Path) -> None:
    """One hour of five days is applied, the rest once the operator confirms the clock; only then retention ends."""
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("00000000-0000-4000-8000-000000000000\n")
    machine.boot_as(boot_id)
    need(_starts(machine.server.prefix), "a user that may mount (unshare --mount --map-root-user)")
    if _synchronised():
        pytest.skip("the clock of this machine is synchronised; see tests/internals/server/test_clocks.py")
    content = Content(machine)
    machine.restart(machine.server.stop, meanwhile_s=DAYS_S)
    content.plain.close()
    assert sum(content.counts(content.plain)) == 3
    readiness = machine.operator("GET", "/health/ready")
    assert readiness.startswith("degraded\n4 days and 23:00:")
    assert "veilmq clock trust" in readiness
    assert "held back" in machine.operator("GET", "/console/health")
    assert "store_time_held_back_seconds 428" in machine.operator("GET", "/metrics")
    for how in (machine.server.stop, machine.server.kill):
        machine.restart(how)
        assert machine.operator("GET", "/health/ready").startswith("degraded\n4 days and 23:00:")
    content.plain.close()
    assert sum(content.counts(content.plain)) == 3
    trust = ["clock", "trust", "--admin-endpoint", machine.server.admin_endpoint]
    output = subprocess.run([sys.executable, "-m", "veilmq", *trust], capture_output=True, text=True, check=True).stdout
    assert output.startswith("4 days and 23:00:")
    assert machine.operator("GET", "/health/ready") == "ready\n"
    assert sum(content.counts(content.plain)) == 0
    machine.restart(machine.server.kill)
    assert machine.operator("GET", "/health/ready") == "ready\n"


def _starts(prefix: list[str]) -> bool:
    return subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0


def _synchronised() -> bool:
    from veilmq.store.clock import kernel_synchronised  # noqa: PLC0415

    return kernel_synchronised()
