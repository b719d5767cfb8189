"""The credentials file: content, permissions, and that errors reveal no secrets.

Sign-in with a key, its expiry by the wall clock, and the cache of queue policies.
"""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.internals.server.scripted_engine import ScriptedEngine
from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, TEXT, TOKEN, written
from veilmq.core import commands
from veilmq.core.commands import Command, QueueView
from veilmq.core.errors import QueueNotFound
from veilmq.core.settings import QueueSettings
from veilmq.server.authentication import Authentication, CredentialsError, load
from veilmq.server.http_parser import Request
from veilmq.server.metrics import Metrics
from veilmq.server.permissions import FRESH_S, Permissions, PolicyDecisions, PolicyUnknown
from veilmq.server.protocols import SQS_JSON, Exchange
from veilmq.wire.exchange import caller_named


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "keys.toml")


def refusal(path: Path) -> str:
    """Return the error of the file; it must not contain a secret."""
    with pytest.raises(CredentialsError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(f"The credentials file {path} ")
    assert not any(secret in text for secret in (*SECRETS.values(), TOKEN))
    return text


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_an_expiry_without_an_offset_is_in_utc(path: Path) -> None:
    written(path, TEXT.replace("00:00:00Z", "00:00:00"))
    assert load(path)["ASIDBOB"].expires_at_s == datetime(2100, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o610, 0o777])
def test_a_file_that_others_can_access_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert f"(mode {mode:04o}); run chmod 600" in refusal(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files owned by root")
@pytest.mark.parametrize(
    ("mode", "is_refused"), [(0o440, False), (0o640, False), (0o644, True), (0o660, True), (0o444, True)]
)
def test_a_file_of_root_may_be_readable_by_the_servers_group(
    path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, *, is_refused: bool
) -> None:
    """Kubernetes and systemd mount secrets so."""
    monkeypatch.setattr("os.geteuid", lambda: 10_001)
    path.chmod(mode)
    if is_refused:
        assert f"(mode {mode:04o}); run chmod 640" in refusal(path)  # with 600 the server could not read it
    else:
        assert load(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_only_the_owner_can_read_is_accepted(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert load(path)


@pytest.mark.parametrize(("old", "new", "words"), [
    ('secret = "secret/of+owner"', "secret = secret/of+owner", "is not TOML (at line 8, column 10)"),
    ('secret = "secret/of+owner"', "secret = 5", "Expected `str`, got `int` - at `$.accounts[0].keys[0].secret`"),
    ('secret = "secret/of+owner"', 'secret = ""', "length >= 1"),
    ('secret = "secret/of+owner"', "", "missing required field `secret`"),
    ("secret = ", "Secret = ", "field `"), (f'"{OWNER}"', '"1"', "$.accounts[0].id"),
    ('"AKIDCAROL"', '"AKID CAROL"', "$.accounts[0].keys[1].id"),
    ('"AKIDCAROL"', '"AKIDOWNER"', "has the key AKIDOWNER twice"),
    (f'"{FRIEND}"', f'"{OWNER}"', f"has the account {OWNER} twice"),
    ('user = "carol"', 'user = "car/ol"', "keys[1].user"), ("2100-01-01T00:00:00Z", '"soon"', "keys[1].expires"),
    (TEXT, "", "missing required field `accounts`"), (TEXT, "accounts = []", "has no keys"),
], ids=range(13))  # fmt: skip
def test_errors_name_the_field_and_no_secret(path: Path, old: str, new: str, words: str) -> None:
    assert old in TEXT
    written(path, TEXT.replace(old, new))
    assert words in refusal(path)


def test_a_file_that_is_not_utf8_is_refused(path: Path) -> None:
    path.write_bytes(b"\xff")
    assert "it is not UTF-8" in refusal(path)


def test_the_file_must_exist_and_be_a_file(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "missing.toml")
    assert "cannot be read: Is a directory" in refusal(tmp_path)
    assert "is no file" in refusal(Path("/dev/null"))
    os.mkfifo(pipe := tmp_path / "pipe", 0o600)
    assert "is no file" in refusal(pipe)


ENDS_S = 4_102_444_800.0  # 2100-01-01
EXPIRING = f"""
[[accounts]]
id = "{OWNER}"
name = "the owner"

[[accounts.keys]]
id = "AKIDSHORT"
secret = "short"
expires = 2100-01-01T00:00:00Z
"""


class Wall:
    """A settable wall clock."""

    now_s = ENDS_S - 1


def authentication(tmp_path: Path, wall: Wall, text: str = TEXT) -> Authentication:
    path = written(tmp_path / "keys.toml", text)
    return Authentication(path, region=REGION, secure=False, wall_s=lambda: wall.now_s)


@pytest.mark.parametrize("key_id", ["AKIDOWNER", "AKIDCAROL", "AKIDFRIEND"])
def test_a_key_signs_in_with_its_own_secret(tmp_path: Path, key_id: str) -> None:
    keys = authentication(tmp_path, Wall())
    caller = keys.sign_in(key_id, SECRETS[key_id])
    assert caller is not None
    assert caller is keys.caller_of(key_id)
    for other in {*SECRETS.values(), "", SECRETS[key_id] + " ", SECRETS[key_id].upper(), "ü"} - {SECRETS[key_id]}:
        assert keys.sign_in(key_id, other) is None


def test_a_key_expires_by_the_wall_clock(tmp_path: Path) -> None:
    wall = Wall()
    keys = authentication(tmp_path, wall, EXPIRING)
    assert keys.sign_in("AKIDSHORT", "short") is not None
    assert keys.caller_of("AKIDSHORT") is not None
    wall.now_s = ENDS_S
    assert keys.sign_in("AKIDSHORT", "short") is None
    assert keys.caller_of("AKIDSHORT") is None


# The cache of policies.


NO_CONNECTION: Any = None
REQUEST = Request(NO_CONNECTION, b"POST", b"/", {}, b"", True)
EXCHANGE = Exchange(REQUEST, Metrics(), SQS_JSON, "SendMessage", 0.0)


class FakePoll:
    """A poll that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def done(self, result: Any) -> None:
        self.calls.append(type(result).__name__)

    def withdraw(self) -> None:
        self.calls.append("withdrawn")

    def hurry(self) -> None:
        self.calls.append("hurried")

    def retry(self) -> "FakePoll":
        self.calls.append("retry")
        return self


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def permissions(engine: ScriptedEngine) -> Permissions:
    return Permissions(engine, PolicyDecisions(region=REGION, secure=False, wall_s=lambda: 0.0))


PURGE = commands.PurgeQueue(queue=f"{OWNER}/jobs")
VIEW = QueueView(queue=PURGE.queue, settings=QueueSettings(), created_at_ms=0, modified_at_ms=0)


def test_requests_that_wait_for_a_policy_share_one_query(engine: ScriptedEngine, permissions: Permissions) -> None:
    """They continue in order, and can be withdrawn or hurried before and after."""
    polls = [FakePoll() for _ in range(4)]
    with pytest.raises(PolicyUnknown):
        permissions.check(EXCHANGE, PURGE, caller_named(OWNER), 0.0)
    gone, hurried, patient, late = [
        permissions.wait(PolicyUnknown(PURGE.queue), each.retry, each.done, 0.0) for each in polls
    ]
    gone.withdraw()
    hurried.hurry()
    assert [command for command, _ in engine.pending] == [commands.ShowQueue(queue=PURGE.queue)]
    engine.complete(VIEW)
    assert [each.calls for each in polls] == [[], ["retry", "hurried"], ["retry"], ["retry"]]
    patient.hurry()
    late.withdraw()
    assert [each.calls for each in polls[2:]] == [["retry", "hurried"], ["retry", "withdrawn"]]
    permissions.check(EXCHANGE, PURGE, caller_named(OWNER), 0.0)


def test_a_policy_dropped_while_it_is_read_is_not_cached(engine: ScriptedEngine, permissions: Permissions) -> None:
    waiting, deleting = FakePoll(), FakePoll()
    permissions.wait(PolicyUnknown(PURGE.queue), waiting.retry, waiting.done, 0.0)
    command = commands.DeleteQueue(queue=PURGE.queue)
    permissions.intercept(EXCHANGE, command, caller_named(OWNER), deleting.done)(None)
    engine.complete(VIEW)
    assert (waiting.calls, deleting.calls) == (["retry"], ["NoneType"])
    with pytest.raises(PolicyUnknown):
        permissions.check(EXCHANGE, PURGE, caller_named(OWNER), 0.0)


def test_a_queue_deleted_elsewhere_is_dropped_at_the_next_read(
    engine: ScriptedEngine, permissions: Permissions
) -> None:
    poll = FakePoll()
    permissions.wait(PolicyUnknown(PURGE.queue), poll.retry, poll.done, 0.0)
    engine.complete(VIEW)
    permissions.check(EXCHANGE, PURGE, caller_named(OWNER), FRESH_S)
    engine.complete(QueueNotFound(PURGE.queue))
    with pytest.raises(PolicyUnknown):
        permissions.check(EXCHANGE, PURGE, caller_named(OWNER), FRESH_S)


def test_the_cache_of_policies_is_bounded(
    engine: ScriptedEngine, permissions: Permissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilmq.server.permissions._CACHED_MAX", 3)
    for number in range(10):
        poll = FakePoll()
        queue = f"{OWNER}/jobs{number}"
        permissions.wait(PolicyUnknown(queue), poll.retry, poll.done, 0.0)
        engine.complete(QueueView(queue=queue, settings=QueueSettings(), created_at_ms=0, modified_at_ms=0))
        assert poll.calls == ["retry"]
    assert len(permissions._cached) <= 3


def test_every_command_names_one_queue_or_none() -> None:
    """A new command that names its queue in another way would bypass the check of permissions."""
    of_account = {commands.ListQueues, commands.BrowseQueues, commands.SetAccount, commands.ShowAccount}
    about_none = {commands.CreateQueue, *of_account}
    found = [kind for kind in vars(commands).values() if isinstance(kind, type) and issubclass(kind, Command)]
    assert len(found) > 12
    for kind in found:
        fields = {field.name for field in msgspec.structs.fields(kind)}
        assert kind in {Command, *about_none} or len({"queue", "source"} & fields) == 1
