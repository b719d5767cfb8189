"""The server for tests and the fixtures of pytest-veilmq."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.clients import boto
from tests.testing.test_faults import PATIENCE_S, start
from veilmq.client.api import Claims
from veilmq.core.commands import Send
from veilmq.core.errors import QueueNotFound
from veilmq.core.messages import NewMessage
from veilmq.testing import MessageState, RunningServer, SystemClock, VirtualClock
from veilmq.wire.sqs.errors import SqsError


def long_poll(server: RunningServer, url: str) -> Future[list[str]]:
    """Return the bodies of a long poll, once it is parked."""

    def receive() -> list[str]:
        reply = boto.client(server.endpoint).receive_message(QueueUrl=url, WaitTimeSeconds=20)
        return [message["Body"] for message in reply.get("Messages", [])]

    parked = server.parked
    future = start(receive)
    server.wait_parked(parked + 1)
    return future


def test_advance_completes_polls_at_their_due_times(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    url = veilmq_server.queue("q").url
    veilmq_boto3.send_message(QueueUrl=url, MessageBody="a")
    veilmq_boto3.receive_message(QueueUrl=url, VisibilityTimeout=10)
    first, second = long_poll(veilmq_server, url), long_poll(veilmq_server, url)
    veilmq_server.advance(9_999)
    assert veilmq_server.parked == 2
    veilmq_server.advance(20_001)
    assert (first.result(PATIENCE_S), second.result(PATIENCE_S)) == (["a"], [])
    assert veilmq_server.parked == 0


def test_advance_returns_when_all_due_work_is_done() -> None:
    """Also work in several slices."""
    with RunningServer() as server, Claims(server.endpoint, "jobs") as claims:
        server.queue("jobs")
        messages = tuple(NewMessage(body="a", size_bytes=1) for _ in range(4_000))
        server.do(Send(queue="000000000000/jobs", messages=messages))
        epoch = claims.open("reader", hold_s=3_600).epoch
        while claims.claim("reader", epoch=epoch, number=1, messages_max=4_000).more:
            pass
        server.advance(seconds=3_601)
        (source,) = claims.sources()
        assert source.ready == 4_000


def test_advance_takes_milliseconds_and_seconds(veilmq_server: RunningServer) -> None:
    before_ms = veilmq_server.clock.now_ms()
    veilmq_server.advance(seconds=29.999)
    veilmq_server.advance(1, seconds=1)
    assert veilmq_server.clock.now_ms() == before_ms + 31_000
    with pytest.raises(ValueError, match="cannot go back"):
        veilmq_server.advance(seconds=-1)
    with pytest.raises(TypeError, match=r"advance\(seconds=30\)"):
        veilmq_server.advance("30s")  # type: ignore[arg-type]


def test_advances_of_several_threads_add_up(veilmq_server: RunningServer) -> None:
    begun_ms = veilmq_server.clock.now_ms()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(veilmq_server.advance, [1] * 400))
    assert veilmq_server.clock.now_ms() == begun_ms + 400


def test_wait_until_returns_or_raises_after_its_timeout(veilmq_server: RunningServer) -> None:
    answers = iter([False, False, True, False])
    veilmq_server.wait_until(lambda: next(answers))
    assert next(answers) is False
    with pytest.raises(TimeoutError, match=r"not so within 0.01 seconds: .*<lambda>"):
        veilmq_server.wait_until(lambda: False, patience_s=0.01)


def test_a_server_uses_the_given_clock() -> None:
    with RunningServer(clock=VirtualClock(start_ms=1_000_000_000_000)) as server:
        sqs = boto.client(server.endpoint)
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="a")
        reply = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["SentTimestamp"])
        assert reply["Messages"][0]["Attributes"] == {"SentTimestamp": "1000000000000"}


def test_the_system_clock_cannot_be_moved() -> None:
    with RunningServer(clock=SystemClock()) as server, pytest.raises(TypeError, match="virtual clock"):
        server.advance(1)


def test_a_folder_outlives_the_server(tmp_path: Path) -> None:
    with RunningServer(data=tmp_path) as server:
        boto.client(server.endpoint).create_queue(QueueName="q")
    with RunningServer(data=tmp_path) as server:
        urls = boto.client(server.endpoint).list_queues()["QueueUrls"]
        assert urls == [f"{server.endpoint}/000000000000/q"]


def test_a_stop_completes_polls_and_can_be_repeated(veilmq_server: RunningServer) -> None:
    waiting = long_poll(veilmq_server, veilmq_server.queue("q").url)
    assert not waiting.done()
    veilmq_server.stop()
    assert waiting.result(PATIENCE_S) == []


def test_a_server_that_does_not_run_is_reported() -> None:
    server = RunningServer()
    server.stop()
    with server:
        queue = server.queue("jobs")
    with pytest.raises(RuntimeError, match="does not run in this process"):
        queue.send("a")


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_has_no_server(veilmq_server: RunningServer) -> None:
    """Its threads are those of the parent, and its copy of the server must not stop the original."""
    queue = veilmq_server.queue("jobs")
    child = os.fork()
    if not child:
        try:
            queue.send("a")
        except RuntimeError:
            veilmq_server.stop()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    queue.send("b")
    assert queue.bodies == ["b"]


pytest_plugins = ["pytester"]

FRESH = """
    import pytest

    @pytest.mark.parametrize("number", range(4))
    def test_nothing_is_left(veilmq_server, veilmq_boto3, number):
        assert "QueueUrls" not in veilmq_boto3.list_queues()
        assert veilmq_server.clock.now_ms() == 1_700_000_000_000
        veilmq_server.queue("jobs")
        veilmq_server.advance(seconds=60)
"""

ENVIRONMENT = """
    import boto3
    import os
    import pytest
    import subprocess
    import sys

    SESSION = boto3.DEFAULT_SESSION

    @pytest.mark.usefixtures("veilmq_environment")
    def test_a_program_that_makes_its_own_client(veilmq_server):
        boto3.client("sqs").create_queue(QueueName="made")
        assert veilmq_server.queue("made").bodies == []
        listed = subprocess.run([sys.executable, "-m", "veilmq", "queue", "list"], capture_output=True, text=True)
        assert "made" in listed.stdout

    @pytest.fixture
    def machine(monkeypatch):
        # Variables of a developer's machine that lead elsewhere.
        for name, value in (
            ("AWS_REGION", "eu-west-1"),
            ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"),
            ("AWS_PROFILE", "of another machine"),
            ("AWS_DEFAULT_PROFILE", "of another machine"),
            ("AWS_CREDENTIAL_EXPIRATION", "2023-11-14T22:13:20Z"),
            ("HTTP_PROXY", "http://127.0.0.1:9"),
            ("NO_PROXY", "internal.example"),
        ):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("no_proxy", raising=False)

    def test_variables_of_the_machine_lead_nowhere_else(machine, veilmq_boto3, veilmq_queue, veilmq_environment):
        for client in (boto3.client("sqs"), veilmq_boto3):
            assert client.list_queues()["QueueUrls"] == [veilmq_queue.url]
        assert os.environ["AWS_REGION"] == os.environ["AWS_DEFAULT_REGION"]
        assert os.environ["NO_PROXY"].split(",") == ["127.0.0.1", "internal.example"]

    @pytest.fixture
    def files(monkeypatch, tmp_path):
        path = tmp_path / "config"
        path.write_text("[default]\\nignore_configured_endpoint_urls = true")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(path))

    def test_files_of_the_machine_lead_nowhere_else(files, veilmq_queue, veilmq_environment):
        assert boto3.client("sqs").meta.endpoint_url in veilmq_queue.url

    def test_it_is_undone(veilmq_url):
        assert boto3.DEFAULT_SESSION is SESSION
        assert veilmq_url not in os.environ.values()

    @pytest.fixture
    def session():
        boto3.setup_default_session(aws_access_key_id="of the suite", aws_secret_access_key="of the suite")
        own = boto3.DEFAULT_SESSION
        yield
        assert boto3.DEFAULT_SESSION is own

    def test_a_session_of_the_suite_is_kept(session, veilmq_environment, veilmq_boto3):
        boto3.client("sqs")
        assert boto3.DEFAULT_SESSION.get_credentials().access_key == "testing"
"""

POLL = """
    import asyncio
    import threading

    def test_from_a_thread(veilmq_server, veilmq_boto3):
        url, got = veilmq_server.queue("jobs").url, []
        receive = lambda: got.append(veilmq_boto3.receive_message(QueueUrl=url, WaitTimeSeconds=20))
        polling = threading.Thread(target=receive)
        polling.start()
        veilmq_server.wait_parked()
        veilmq_server.advance(seconds=20)
        polling.join()
        assert "Messages" not in got[0]

    def test_from_a_coroutine(veilmq_server, veilmq_boto3):
        async def scenario():
            url = veilmq_server.queue("jobs").url
            polling = asyncio.create_task(
                asyncio.to_thread(veilmq_boto3.receive_message, QueueUrl=url, WaitTimeSeconds=20)
            )
            await asyncio.to_thread(veilmq_server.wait_parked)
            veilmq_boto3.send_message(QueueUrl=url, MessageBody="a", DelaySeconds=10)
            veilmq_server.advance(seconds=9)
            await asyncio.sleep(0)
            assert not polling.done()
            veilmq_server.advance(seconds=1)
            return (await polling)["Messages"][0]["Body"]

        assert asyncio.run(scenario()) == "a"
"""

SETTINGS = """
    import pytest

    @pytest.fixture
    def veilmq_settings(tmp_path):
        return {"data": tmp_path, "in_flight_max": 1}

    def test_the_settings_hold(veilmq_server, veilmq_boto3, tmp_path):
        assert list(tmp_path.glob("*.db"))
        queue = veilmq_server.queue("jobs")
        for body in "ab":
            veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody=body)
        veilmq_boto3.receive_message(QueueUrl=queue.url, MaxNumberOfMessages=10)
        assert queue.counts.in_flight == 1

    @pytest.mark.parametrize("veilmq_settings", [{"region": "eu-north-1"}], ids=["north"])
    def test_of_one_test(veilmq_server, veilmq_boto3):
        url = veilmq_server.queue("jobs").url
        attributes = veilmq_boto3.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        assert attributes["Attributes"]["QueueArn"].split(":")[3] == "eu-north-1"
        assert veilmq_boto3.meta.region_name == "eu-north-1"

    @pytest.mark.parametrize("veilmq_settings", [{"region": "eu-north-1"}], ids=["north"])
    def test_a_signature_is_of_the_region(veilmq_settings, tmp_path, request):
        path = tmp_path / "keys.toml"
        keys = '[[accounts.keys]]\\nid = "testing"\\nsecret = "testing"'
        path.write_text('[[accounts]]\\nid = "000000000000"\\nname = "shop"\\n' + keys)
        path.chmod(0o600)
        veilmq_settings["credentials"] = path
        request.getfixturevalue("veilmq_environment")
        assert "QueueUrls" not in request.getfixturevalue("veilmq_boto3").list_queues()
"""

FAULTS = """
    import pytest
    from botocore.exceptions import ClientError
    from veilmq.testing import faults

    def test_it_fails_twice(veilmq_server, veilmq_boto3):
        url = veilmq_server.queue("jobs").url
        veilmq_server.faults.script("SendMessage", faults.UNAVAILABLE, times=2)
        for _ in range(2):
            with pytest.raises(ClientError, match="ServiceUnavailable"):
                veilmq_boto3.send_message(QueueUrl=url, MessageBody="a")
        veilmq_boto3.send_message(QueueUrl=url, MessageBody="a")
"""


QUEUE = """
    import pytest

    def test_a_queue(veilmq_queue, veilmq_server):
        assert veilmq_queue.name == "test_a_queue"
        first = veilmq_queue.send("tea", delay_s=10)
        veilmq_queue.send("milk")
        (held,) = veilmq_queue.receive(10, timeout_s=5)
        assert (held.body, held.receive_count, held.visible_at_ms) == ("milk", 1, veilmq_server.clock.now_ms() + 5_000)
        assert (veilmq_queue.counts.in_flight, veilmq_queue.counts.delayed) == (1, 1)
        veilmq_server.advance(seconds=10)
        again, delayed = veilmq_queue.receive(10)
        assert (again.body, again.receive_count, delayed.body) == ("milk", 2, "tea")
        assert delayed.id.hex() == first.replace("-", "")
        veilmq_queue.delete(held)  # it was received again
        assert veilmq_queue.bodies == ["tea", "milk"]
        veilmq_queue.delete(again)
        assert veilmq_queue.bodies == ["tea"]

    @pytest.mark.parametrize("name", ["a b/" * 40])
    def test_a_long_name(veilmq_queue, veilmq_boto3, name):
        assert len(veilmq_queue.name) == 80
        veilmq_boto3.send_message(QueueUrl=veilmq_queue.url, MessageBody="tea")
        assert [each.body for each in veilmq_queue.receive()] == ["tea"]

    @pytest.mark.parametrize("veilmq_queue_settings", [{"fifo": False}, {"fifo": True}], ids=["standard", "fifo"])
    def test_of_both_kinds(veilmq_queue, veilmq_queue_settings):
        assert veilmq_queue.name.endswith(".fifo") is veilmq_queue_settings["fifo"]

    @pytest.mark.parametrize("veilmq_queue_settings", [{"fifo": True, "visibility_timeout_s": 5}], ids=["ordered"])
    def test_of_another_kind(veilmq_queue, veilmq_server):
        for body in ("pick", "pack"):
            veilmq_queue.send(body, group="order-1", dedup_id=body)
        assert veilmq_queue.name == "test_of_another_kind-ordered-.fifo"
        assert [each.body for each in veilmq_queue.receive(1)] == ["pick"]
        assert veilmq_queue.receive() == []
        veilmq_server.advance(seconds=5)
        assert [each.body for each in veilmq_queue.receive(10)] == ["pick", "pack"]

    def test_past_faults(veilmq_queue, veilmq_server):
        from veilmq.testing import ANY, faults

        veilmq_server.faults.script(ANY, faults.UNAVAILABLE)
        veilmq_queue.send("tea")
        veilmq_queue.delete(*veilmq_queue.receive())
        assert (veilmq_queue.bodies, len(veilmq_server.faults.left)) == ([], 1)

    def test_a_message_of_another_queue(veilmq_queue, veilmq_server):
        from veilmq.core.errors import ReceiptInvalid

        veilmq_queue.send("tea")
        with pytest.raises(ReceiptInvalid):
            veilmq_server.queue("other").delete(*veilmq_queue.receive())
"""


@pytest.mark.slow
def test_the_queue_fixture_sends_receives_and_deletes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_queue=QUEUE)
    pytester.runpytest("-Werror").assert_outcomes(passed=7)


@pytest.mark.slow
def test_unused_modules_are_not_imported_at_the_start(pytester: pytest.Pytester) -> None:
    """The admin port, the console and the consumer are imported at their first use."""
    pytester.makepyfile("""
        import sys
        from urllib.request import urlopen

        def test_it(veilmq_server, veilmq_queue):
            veilmq_queue.send("tea")
            late = {"jinja2", "starlette.applications", "urllib3", "uvicorn", "veilmq.consumer"}
            assert not late & sys.modules.keys()
            assert urlopen(veilmq_server.admin_endpoint + "/health/ready").read().strip() == b"ready"
            assert late & sys.modules.keys() >= {"starlette.applications", "uvicorn"}
    """)
    pytester.runpytest_subprocess("-Werror").assert_outcomes(passed=1)


@pytest.mark.slow
def test_suites_of_users_pass_without_warnings(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_fresh=FRESH,
        test_environment=ENVIRONMENT,
        test_poll=POLL,
        test_settings=SETTINGS,
        test_faults=FAULTS,
    )
    pytester.runpytest("-Werror").assert_outcomes(passed=15)


@pytest.mark.slow
def test_the_fixtures_work_with_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FRESH)
    pytester.runpytest_subprocess("-n2", "-Werror").assert_outcomes(passed=4)


@pytest.mark.slow
def test_a_missing_module_fails_only_the_tests_that_need_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys\nsys.modules['apsw'] = sys.modules['boto3'] = None")
    pytester.makepyfile("""
        import pytest

        def test_with_a_server(veilmq_server): ...

        @pytest.mark.parametrize("veilmq_url", ["http://127.0.0.1:9324"])
        def test_with_boto3(veilmq_url, veilmq_boto3): ...

        def test_without(): ...
    """)
    done = pytester.runpytest_subprocess()
    done.assert_outcomes(passed=1, errors=2)
    done.stdout.fnmatch_lines(["*the module apsw is missing: pip install 'veilmq?server?'*"])
    done.stdout.fnmatch_lines(["*veilmq_boto3 needs the suite's own boto3: pip install boto3"])
    done.stdout.no_fnmatch_line("*another exception*")


@pytest.mark.slow
def test_a_suite_without_the_fixtures_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\ndef test_it(): assert 'pytest_veilmq' in sys.modules and 'veilmq' not in sys.modules"
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_plugin_has_the_name_of_its_module() -> None:
    """Else pytest refuses ``pytest_plugins = ["pytest_veilmq"]`` beside the entry point."""
    project = (Path(__file__).parents[2] / "packages/pytest-veilmq/pyproject.toml").read_text(encoding="utf-8")
    assert '\n[project.entry-points.pytest11]\npytest_veilmq = "pytest_veilmq"\n' in project


@pytest.mark.slow
def test_the_plain_install_does_not_need_pytest() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    plain, _, dev = project.partition("\ndev = [")
    assert '"pytest' not in plain
    assert '"pytest' in dev


def test_the_queue_method_creates_a_queue_once(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    queue = veilmq_server.queue("jobs", visibility_timeout_s=7)
    assert str(queue) == queue.url == veilmq_boto3.get_queue_url(QueueName="jobs")["QueueUrl"]
    assert veilmq_server.queue("jobs").url == queue.url
    veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    veilmq_boto3.receive_message(QueueUrl=queue.url)
    assert queue.in_flight[0].visible_at_ms == veilmq_server.clock.now_ms() + 7_000


def test_the_queue_method_creates_fifo_and_dead_letter_queues(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    veilmq_server.queue("dead.fifo")
    queue = veilmq_server.queue("jobs.fifo", dead_letter_queue="dead.fifo", receives_max=2)
    found = veilmq_boto3.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["FifoQueue", "RedrivePolicy"])
    assert found["Attributes"]["FifoQueue"] == "true"
    assert '"maxReceiveCount":2' in found["Attributes"]["RedrivePolicy"].replace(" ", "")


def test_invalid_queues_are_refused(veilmq_server: RunningServer) -> None:
    with pytest.raises(ValueError, match="'visibility' is not a setting of a queue; these are visibility_timeout_s,"):
        veilmq_server.queue("jobs", visibility=3)
    with pytest.raises(SqsError, match="VisibilityTimeout"):
        veilmq_server.queue("jobs", visibility_timeout_s=43_201)
    veilmq_server.queue("jobs")
    with pytest.raises(SqsError, match="already exists"):
        veilmq_server.queue("jobs", delay_s=1)
    with pytest.raises(SqsError, match="alphanumeric"):
        veilmq_server.queue("no spaces")


def test_a_queue_shows_counts_and_messages(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    queue = veilmq_server.queue("jobs")
    for body, delay_s in (("a", 0), ("b", 0), ("c", 5)):
        veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody=body, DelaySeconds=delay_s)
    veilmq_boto3.receive_message(QueueUrl=queue.url)
    counts = queue.counts
    assert (counts.visible, counts.in_flight, counts.delayed) == (1, 1, 1)
    (held,) = queue.in_flight
    assert (held.body, held.receive_count, held.state) == ("a", 1, MessageState.IN_FLIGHT)
    assert [message.body for message in queue.visible] == ["b"]
    assert [message.body for message in queue.delayed] == ["c"]
    assert repr(queue) == "<queue jobs: 1 visible, 1 in flight, 1 delayed>"
    assert [message.body for message in queue.messages(count=2)] == ["a", "b"]
    with pytest.raises(ValueError, match="'in_flight' is not a valid MessageState"):
        queue.messages("in_flight")  # type: ignore[arg-type]
    (received,) = veilmq_boto3.receive_message(
        QueueUrl=queue.url, MessageSystemAttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert received["Attributes"] == {"ApproximateReceiveCount": "1"}


def test_a_deleted_queue_has_no_messages(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    queue = veilmq_server.queue("jobs")
    veilmq_boto3.delete_queue(QueueUrl=queue.url)
    with pytest.raises(QueueNotFound):
        queue.messages()
