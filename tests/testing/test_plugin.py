"""The fixtures as suites of users have them: pytest runs example suites that only know what is installed."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

CLOCK = """
    def test_a_lease_ends(veilmq_server, veilmq_boto3):
        url = veilmq_server.queue("jobs").url
        veilmq_boto3.send_message(QueueUrl=url, MessageBody="hello")
        veilmq_boto3.receive_message(QueueUrl=url)
        veilmq_server.advance(seconds=29.999)
        assert "Messages" not in veilmq_boto3.receive_message(QueueUrl=url)
        veilmq_server.advance(1)
        assert veilmq_boto3.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "hello"
"""

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

    @pytest.mark.usefixtures("veilmq_environment")
    def test_a_program_that_makes_its_own_client(veilmq_server):
        boto3.client("sqs").create_queue(QueueName="made")
        assert veilmq_server.queue("made").bodies == []
        listed = subprocess.run([sys.executable, "-m", "veilmq", "queue", "list"], capture_output=True, text=True)
        assert "made" in listed.stdout

    def test_it_is_undone(veilmq_url):
        assert veilmq_url not in os.environ.values()
"""

POLL = """
    import asyncio
    import threading

    def test_from_a_thread(veilmq_server, veilmq_boto3):
        url, got = veilmq_server.queue("jobs").url, []
        ask = lambda: got.append(veilmq_boto3.receive_message(QueueUrl=url, WaitTimeSeconds=20))
        asking = threading.Thread(target=ask)
        asking.start()
        veilmq_server.wait_parked()
        veilmq_server.advance(seconds=20)
        asking.join()
        assert "Messages" not in got[0]

    def test_from_a_coroutine(veilmq_server, veilmq_boto3):
        async def story():
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

        assert asyncio.run(story()) == "a"
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
        told = veilmq_boto3.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        assert told["Attributes"]["QueueArn"].split(":")[3] == "eu-north-1"
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


def test_suites(pytester: pytest.Pytester) -> None:
    """Suites that only name fixtures pass, and leave no warning."""
    pytester.makepyfile(
        test_clock=CLOCK,
        test_fresh=FRESH,
        test_environment=ENVIRONMENT,
        test_poll=POLL,
        test_settings=SETTINGS,
        test_faults=FAULTS,
    )
    pytester.runpytest("-Werror").assert_outcomes(passed=12)


def test_with_xdist(pytester: pytest.Pytester) -> None:
    """Workers do not see each other's servers."""
    pytester.makepyfile(FRESH)
    pytester.runpytest_subprocess("-n2", "-Werror").assert_outcomes(passed=4)


def test_what_is_missing_is_named(pytester: pytest.Pytester) -> None:
    """By the tests that need it: the others run as ever, and how to install it is all that is shown."""
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


def test_a_suite_without_the_fixtures_imports_nothing(pytester: pytest.Pytester) -> None:
    """Not even veilmq itself."""
    pytester.makepyfile(
        "import sys\ndef test_it(): assert 'pytest_veilmq' in sys.modules and 'veilmq' not in sys.modules"
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_plain_install_does_not_need_pytest() -> None:
    """It is the suite's own: no extra for users has it."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    plain, _, dev = project.partition("\ndev = [")
    assert '"pytest' not in plain
    assert '"pytest' in dev
