"""Options: they are parsed, checked and documented from one table."""

import re

import pytest

from veilmq.client.transport import ENDPOINT_VARIABLES
from veilmq.spark.options import SOURCE_OPTIONS, OptionWrong, SourceOptions

SPARK_REDACTS = re.compile("(?i)secret|password|token|access[.]?key")
"""The default of `spark.redaction.regex` (Spark 4.3.0, `SparkConf`)."""


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", *ENDPOINT_VARIABLES):
        monkeypatch.delenv(name, raising=False)


def test_endpoint_comes_from_the_same_variables_as_for_other_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variable takes precedence over those before it."""
    for number, name in enumerate(reversed(ENDPOINT_VARIABLES)):
        monkeypatch.setenv(name, f"http://127.0.0.1:{number}")
        assert SourceOptions.of({"queue": "orders"}).connection.endpoint == f"http://127.0.0.1:{number}"
    given = SourceOptions.of({"queue": "orders", "endpoint": "http://here"})
    assert given.connection.endpoint == "http://here"


def test_only_the_queue_is_required() -> None:
    options = SourceOptions.of({"queue": "orders"})
    assert (options.connection.queue, options.connection.endpoint) == ("orders", "http://127.0.0.1:9324")
    assert (options.mode, options.lease_s, options.hold_s, options.wait_s) == ("claims", 60, None, 20)
    assert options.connection.key is None


def test_names_are_case_insensitive() -> None:
    options = SourceOptions.of(
        {
            "PATH": "orders",
            "MAXOFFSETSPERTRIGGER": "7",
            "OnLostClaim": "SKIP",
            "takeover": "TRUE",
            "maxbytesperbatch": "2097152",
        }
    )
    assert (options.connection.queue, options.messages_max, options.bytes_max) == ("orders", 7, 2_097_152)
    assert SourceOptions.of({"queue": "a", "maxBytesPerTrigger": "9000000"}).bytes_max == 9_000_000
    assert (options.on_lost_claim, options.takeover) == ("skip", True)


@pytest.mark.parametrize(("given", "text"), [
    pytest.param({}, "option queue: is required", id="no-queue"),
    pytest.param({"queue": "a", "path": "b"}, "the path is 'b'", id="two-queues"),
    pytest.param({"queue": "a", "startingPosition": "LATEST"}, "a queue has no positions to start", id="position"),
    pytest.param({"queue": "a", "startingOffsets": "earliest"}, "remove the option", id="offsets"),
    pytest.param({"queue": "a", "maxMessagesPerBatch": "5", "maxOffsetsPerTrigger": "6"}, "is the same as", id="twice"),
    pytest.param({"queue": "a", "maxBytesPerBatch": "1000"}, "must be 2,097,152 to", id="bytes"),
    pytest.param({"queue": "a", "MAXBYTESPERTRIGGER": "1"}, "option maxBytesPerTrigger = '1': must be", id="alias"),
    pytest.param({"queue": "a", "leese": "5"}, "did you mean lease?", id="near"),
    pytest.param({"queue": "a", "zzzz": "5"}, "the options are endpoint, queue", id="far"),
    pytest.param({"queue": "a", "hold": "59"}, "hold = '59': must be 60 to 1,209,600", id="below"),
    pytest.param({"queue": "a", "hold": "1h"}, "hold = '1h': must be 60 to 1,209,600", id="no-number"),
    pytest.param({"queue": "a", "mode": "kafka"}, "mode = 'kafka': must be claims or sqs", id="choice"),
    pytest.param({"queue": "a", "takeover": "yes"}, "must be true or false", id="yes-no"),
    pytest.param({"queue": "a", "endpoint": "here:1"}, "must look like http://127.0.0.1:9324", id="endpoint"),
    pytest.param({"queue": "a", "accessKey": "AK"}, "requires secretKey", id="half-a-key"),
    pytest.param({"queue": ""}, "queue = '': must be text", id="empty"),
    pytest.param({"queue": "a", "snapshot": "a/b"}, "snapshot = 'a/b': must be 1 to 128 letters", id="name"),
    pytest.param({"queue": "a", "snapshot": "x" * 129}, "must be 1 to 128 letters", id="long-name"),
    pytest.param({"queue": "a", "snapshot": "é"}, "must be 1 to 128 letters", id="letter"),
])  # fmt: skip
def test_error_names_the_option(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionWrong, match=re.escape(text)):
        SourceOptions.of(given)


def test_key_in_the_options_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    found = SourceOptions.of({"queue": "a"}).connection.key
    given = SourceOptions.of({"queue": "a", "accessKey": "AK", "secretKey": "s", "sessionToken": "t"}).connection.key
    moved = SourceOptions.of({"queue": "a", "region": "us-west-2"}).connection.key
    assert found is not None
    assert given is not None
    assert moved is not None
    assert (found.id, found.region, found.secret) == ("AKENV", "eu-west-1", "hidden")
    assert (given.id, given.region, given.session_token) == ("AK", "eu-west-1", "t")
    assert (moved.id, moved.region) == ("AKENV", "us-west-2")


def test_secrets_are_hidden() -> None:
    """In our texts, and by Spark, which redacts by the names of options."""
    options = SourceOptions.of({"queue": "a", "accessKey": "AK", "secretKey": "hushhush", "sessionToken": "hushtoo"})
    assert "hush" not in repr(options)
    secrets = [option.name for option in SOURCE_OPTIONS if option.secret]
    assert len(secrets) == 3
    assert [name for name in secrets if not SPARK_REDACTS.search(name)] == []
    with pytest.raises(OptionWrong) as wrong:
        SourceOptions.of({"queue": "a", "secretKey": "hushhush"})
    assert "hush" not in str(wrong.value)
