"""The credentials file: what it may say, who may read it, and that nothing of its secrets comes out.

Then: who may sign in with a key's id and secret, and who is still known afterwards, by the wall clock.
"""

import os
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
from veilmq.server.permissions import FRESH_S, Permissions, PolicyDecisions, PolicyUnknown
from veilmq.wire.exchange import caller_named


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "keys.toml")


def refusal(path: Path) -> str:
    """Return why the file is not taken; no secret is told, whatever it says."""
    with pytest.raises(CredentialsError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(f"The credentials file {path} ")
    assert not any(secret in text for secret in (*SECRETS.values(), TOKEN))
    return text


def test_accounts_and_keys_are_read(path: Path) -> None:
    keys = load(path)
    assert list(keys) == list(SECRETS)
    assert {name: key.caller.account for name, key in keys.items()} == {
        "AKIDOWNER": OWNER,
        "AKIDCAROL": OWNER,
        "AKIDFRIEND": FRIEND,
        "ASIDBOB": FRIEND,
    }
    assert keys["AKIDOWNER"].caller.is_root
    assert keys["ASIDBOB"].caller.arn == f"arn:aws:iam::{FRIEND}:user/bob"
    assert keys["ASIDBOB"].expires_at_s == datetime(2100, 1, 1, tzinfo=UTC).timestamp()
    assert (keys["ASIDBOB"].session_token, keys["AKIDOWNER"].session_token) == (TOKEN.encode(), None)


def test_an_end_without_an_offset_is_in_utc(path: Path) -> None:
    written(path, TEXT.replace("00:00:00Z", "00:00:00"))
    assert load(path)["ASIDBOB"].expires_at_s == datetime(2100, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o610, 0o777])
def test_a_file_that_others_may_touch_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert f"(mode {mode:04o}); run chmod 600" in refusal(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of root's")
@pytest.mark.parametrize(
    ("mode", "is_refused"), [(0o440, False), (0o640, False), (0o644, True), (0o660, True), (0o444, True)]
)
def test_a_secret_of_roots_may_be_for_the_group_of_the_server(
    path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, *, is_refused: bool
) -> None:
    """As Kubernetes and systemd mount one."""
    monkeypatch.setattr("os.geteuid", lambda: 10_001)
    path.chmod(mode)
    if is_refused:
        assert f"(mode {mode:04o}); run chmod 640" in refusal(path)  # with 600 the server could not read it
    else:
        assert load(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_the_owner_alone_may_read(path: Path, mode: int) -> None:
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
def test_what_is_wrong_is_told_and_no_secret(path: Path, old: str, new: str, words: str) -> None:
    assert old in TEXT
    written(path, TEXT.replace(old, new))
    assert words in refusal(path)


def test_bytes_that_are_no_text_are_refused(path: Path) -> None:
    path.write_bytes(b"\xff")
    assert "it is not UTF-8" in refusal(path)


def test_a_file_must_be_there_and_a_file(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "missing.toml")
    assert "cannot be read: Is a directory" in refusal(tmp_path)
    assert "is no file" in refusal(Path("/dev/null"))


def test_no_key_shows_its_secret(path: Path) -> None:
    shown = repr(load(path))
    assert "AKIDOWNER" in shown
    assert not any(secret in shown for secret in (*SECRETS.values(), TOKEN))


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
    """The wall clock of a test."""

    now_s = ENDS_S - 1


def authentication(tmp_path: Path, wall: Wall, text: str = TEXT) -> Authentication:
    path = written(tmp_path / "keys.toml", text)
    return Authentication(path, region=REGION, secure=False, wall_s=lambda: wall.now_s)


@pytest.mark.parametrize("key_id", ["AKIDOWNER", "AKIDCAROL", "AKIDFRIEND"])
def test_a_key_signs_in_with_its_own_secret(tmp_path: Path, key_id: str) -> None:
    known = authentication(tmp_path, Wall())
    who = known.sign_in(key_id, SECRETS[key_id])
    assert who is not None
    assert who is known.caller_of(key_id)
    for other in {*SECRETS.values(), "", SECRETS[key_id] + " ", SECRETS[key_id].upper(), "ü"} - {SECRETS[key_id]}:
        assert known.sign_in(key_id, other) is None


def test_a_key_ends_by_the_wall_clock(tmp_path: Path) -> None:
    wall = Wall()
    known = authentication(tmp_path, wall, EXPIRING)
    assert known.sign_in("AKIDSHORT", "short") is not None
    assert known.caller_of("AKIDSHORT") is not None
    wall.now_s = ENDS_S
    assert known.sign_in("AKIDSHORT", "short") is None
    assert known.caller_of("AKIDSHORT") is None


# What is known of the policies of queues: waiting for one, forgetting it, and how much is kept.


class Step:
    """An exchange, and a poll, that note what happens to them."""

    request: Any = None
    protocol: Any = None
    base_url = ""
    action = permission = "SendMessage"
    started_s = 0.0

    def __init__(self) -> None:
        self.happened: list[str] = []

    def done(self, result: Any) -> None:
        self.happened.append(type(result).__name__)

    def withdraw(self) -> None:
        self.happened.append("withdrawn")

    def hurry(self) -> None:
        self.happened.append("hurried")

    def again(self) -> "Step":
        self.happened.append("again")
        return self


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def permissions(engine: ScriptedEngine) -> Permissions:
    return Permissions(engine, PolicyDecisions(region=REGION, secure=False, wall_s=lambda: 0.0))


PURGE = commands.PurgeQueue(queue=f"{OWNER}/jobs")
VIEW = QueueView(queue=PURGE.queue, settings=QueueSettings(), created_at_ms=0, modified_at_ms=0)


def test_who_waits_for_a_policy_may_go_or_be_hurried(engine: ScriptedEngine, permissions: Permissions) -> None:
    """Before it is known and after; those who wait for one policy ask for it once, and go on in their order."""
    steps = [Step() for _ in range(4)]
    with pytest.raises(PolicyUnknown):
        permissions.check(steps[0], PURGE, caller_named(OWNER), 0.0)
    gone, hurried, patient, late = [
        permissions.wait(PolicyUnknown(PURGE.queue), step.again, step.done, 0.0) for step in steps
    ]
    gone.withdraw()
    hurried.hurry()
    assert [command for command, _ in engine.pending] == [commands.ShowQueue(queue=PURGE.queue)]
    engine.answer(VIEW)
    assert [step.happened for step in steps] == [[], ["again", "hurried"], ["again"], ["again"]]
    patient.hurry()
    late.withdraw()
    assert [step.happened for step in steps[2:]] == [["again", "hurried"], ["again", "withdrawn"]]
    permissions.check(steps[0], PURGE, caller_named(OWNER), 0.0)


def test_a_policy_that_is_forgotten_while_it_is_asked_for_is_not_cached(
    engine: ScriptedEngine, permissions: Permissions
) -> None:
    step, heard = Step(), Step()
    permissions.wait(PolicyUnknown(PURGE.queue), step.again, step.done, 0.0)
    deleting = commands.DeleteQueue(queue=PURGE.queue)
    permissions.intercept(step, deleting, caller_named(OWNER), heard.done)(None)
    engine.answer(VIEW)
    assert (step.happened, heard.happened) == (["again"], ["NoneType"])
    with pytest.raises(PolicyUnknown):
        permissions.check(step, PURGE, caller_named(OWNER), step.started_s)


def test_a_queue_that_is_gone_when_it_is_asked_for_again_is_forgotten(
    engine: ScriptedEngine, permissions: Permissions
) -> None:
    step = Step()
    permissions.wait(PolicyUnknown(PURGE.queue), step.again, step.done, 0.0)
    engine.answer(VIEW)
    step.started_s = FRESH_S
    permissions.check(step, PURGE, caller_named(OWNER), step.started_s)
    engine.answer(QueueNotFound(PURGE.queue))
    with pytest.raises(PolicyUnknown):
        permissions.check(step, PURGE, caller_named(OWNER), step.started_s)


def test_what_is_cached_of_queues_has_an_end(
    engine: ScriptedEngine, permissions: Permissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilmq.server.permissions._CACHED_MAX", 3)
    for number in range(10):
        step = Step()
        queue = f"{OWNER}/jobs{number}"
        permissions.wait(PolicyUnknown(queue), step.again, step.done, 0.0)
        engine.answer(QueueView(queue=queue, settings=QueueSettings(), created_at_ms=0, modified_at_ms=0))
        assert step.happened == ["again"]
    assert len(permissions._cached) <= 3


def test_every_command_is_about_a_queue_or_known_to_be_about_none() -> None:
    """A new one that names its queue in another way fails here, not in front of a stranger."""
    of_account = {commands.ListQueues, commands.BrowseQueues, commands.SetAccount, commands.ShowAccount}
    about_none = {commands.CreateQueue, *of_account}
    found = [kind for kind in vars(commands).values() if isinstance(kind, type) and issubclass(kind, Command)]
    assert len(found) > 12
    for kind in found:
        fields = {field.name for field in msgspec.structs.fields(kind)}
        assert kind in {Command, *about_none} or len({"queue", "source"} & fields) == 1
