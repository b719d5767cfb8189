"""veilmq's fixtures for pytest, found by the entry point ``pytest_veilmq``; see ``docs/testing.md``.

veilmq is imported only when a test requests a fixture.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:  # the import takes 0.2 s, which test runs without a server save
    from veilmq.testing import RunningQueue, RunningServer

REGION = "us-east-1"
"""The default of the setting ``region``."""
KEY = "testing"
"""The key and the secret of clients; a server without a credentials file accepts any."""


@pytest.fixture
def veilmq_settings() -> dict[str, Any]:
    """Keyword arguments of ``veilmq.testing.RunningServer`` for the test's server; override to change it."""
    return {}


@pytest.fixture
def veilmq_server(veilmq_settings: dict[str, Any]) -> "Iterator[RunningServer]":
    """Run a server for the test: empty, in memory, on a free port, with a clock that only the test advances."""
    try:
        from veilmq.testing import RunningServer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    with RunningServer(**veilmq_settings) as server:
        yield server


@pytest.fixture
def veilmq_url(veilmq_server: "RunningServer") -> str:
    """Return the endpoint URL of the test's server."""
    return veilmq_server.endpoint


@pytest.fixture
def veilmq_queue_settings() -> dict[str, Any]:
    """Settings of ``veilmq_queue``, for example ``visibility_timeout_s``; override to change them."""
    return {}


@pytest.fixture
def veilmq_queue(
    request: pytest.FixtureRequest, veilmq_server: "RunningServer", veilmq_queue_settings: dict[str, Any]
) -> "RunningQueue":
    """Create a queue with the name of the test; with the setting ``fifo`` a FIFO queue."""
    from veilmq.core.limits import SQS_QUEUE_NAME_CHARACTERS_MAX as CHARACTERS_MAX  # noqa: PLC0415

    ending = ".fifo" if veilmq_queue_settings.get("fifo") else ""
    name = re.sub("[^A-Za-z0-9_-]", "-", request.node.name)[: CHARACTERS_MAX - len(ending)]
    return veilmq_server.queue(name + ending, **veilmq_queue_settings)


@pytest.fixture
def veilmq_environment(veilmq_url: str, veilmq_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Point AWS SDKs, the AWS CLI and veilmq's commands to the test's server by environment variables.

    A program under test that creates its own clients needs no change. The endpoints of other AWS services are not
    changed, but the keys are invalid there.
    """
    _redirect(veilmq_url, veilmq_settings, monkeypatch)


def _redirect(url: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    region = settings.get("region", REGION)
    with suppress(ModuleNotFoundError):
        monkeypatch.setattr("boto3.DEFAULT_SESSION", None)  # it keeps its keys and its profile
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_CREDENTIAL_EXPIRATION"):
        monkeypatch.delenv(name, raising=False)
    direct = "no_proxy" if "no_proxy" in os.environ else "NO_PROXY"
    if os.environ.get(direct) != "*":  # "*" bypasses the proxy for all hosts
        monkeypatch.setenv(direct, urlsplit(url).hostname or "", prepend=",")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", url)
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "false")  # true in a profile would lead to AWS
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    monkeypatch.setenv("AWS_REGION", region)  # the only name that the SDKs for Java and JavaScript know
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("VEILMQ_ENDPOINT", url)


@pytest.fixture
def veilmq_boto3(veilmq_url: str, veilmq_settings: dict[str, Any]) -> Iterator[Any]:
    """Return a boto3 client for SQS on the test's server, without retries. The test suite must install boto3."""
    try:
        import boto3  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415
    except ModuleNotFoundError as error:
        missing = f"the fixture veilmq_boto3 needs the suite's own {error.name}: pip install boto3"
        raise pytest.fail.Exception(missing, pytrace=False) from None

    with pytest.MonkeyPatch.context() as monkeypatch:
        _redirect(veilmq_url, veilmq_settings, monkeypatch)
        config = Config(retries={"total_max_attempts": 1}, proxies={})
        client = boto3.client("sqs", endpoint_url=veilmq_url, config=config)
    yield client
    client.close()
