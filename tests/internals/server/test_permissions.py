"""What is known of the policies of queues: waiting for one, forgetting it, and how much is kept."""

from typing import Any

import msgspec
import pytest

from tests.internals.server.scripted_engine import ScriptedEngine
from tests.server.keys import OWNER, REGION
from veilmq.core import commands
from veilmq.core.commands import Command, QueueView
from veilmq.core.errors import QueueNotFound
from veilmq.core.settings import QueueSettings
from veilmq.server.permissions import FRESH_S, Permissions, PolicyDecisions, Unknown
from veilmq.wire.exchange import caller_named


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


PURGE = commands.PurgeQueue(queue=f"{OWNER}/jobs")
VIEW = QueueView(queue=PURGE.queue, settings=QueueSettings(), created_at_ms=0, modified_at_ms=0)


def test_who_waits_for_a_policy_may_go_or_be_hurried() -> None:
    """Before it is known and after; those who wait for one policy ask for it once, and go on in their order."""
    engine = ScriptedEngine()
    permissions = Permissions(engine, PolicyDecisions(region=REGION, secure=False, wall_s=lambda: 0.0))
    steps = [Step() for _ in range(4)]
    with pytest.raises(Unknown):
        permissions.check(steps[0], PURGE, caller_named(OWNER), 0.0)
    gone, hurried, patient, late = [
        permissions.wait(Unknown(PURGE.queue), step.again, step.done, 0.0) for step in steps
    ]
    gone.withdraw()
    hurried.hurry()
    assert [command for command, _ in engine.asked] == [commands.ShowQueue(queue=PURGE.queue)]
    engine.answer(VIEW)
    assert [step.happened for step in steps] == [[], ["again", "hurried"], ["again"], ["again"]]
    patient.hurry()
    late.withdraw()
    assert [step.happened for step in steps[2:]] == [["again", "hurried"], ["again", "withdrawn"]]
    permissions.check(steps[0], PURGE, caller_named(OWNER), 0.0)


def test_a_policy_that_is_forgotten_while_it_is_asked_for_is_not_kept() -> None:
    engine = ScriptedEngine()
    permissions = Permissions(engine, PolicyDecisions(region=REGION, secure=False, wall_s=lambda: 0.0))
    step, heard = Step(), Step()
    permissions.wait(Unknown(PURGE.queue), step.again, step.done, 0.0)
    deleting = commands.DeleteQueue(queue=PURGE.queue)
    permissions.intercept(step, deleting, caller_named(OWNER), heard.done)(None)
    engine.answer(VIEW)
    assert (step.happened, heard.happened) == (["again"], ["NoneType"])
    with pytest.raises(Unknown):
        permissions.check(step, PURGE, caller_named(OWNER), step.started_s)


def test_a_queue_that_is_gone_when_it_is_asked_for_again_is_forgotten() -> None:
    engine = ScriptedEngine()
    permissions = Permissions(engine, PolicyDecisions(region=REGION, secure=False, wall_s=lambda: 0.0))
    step = Step()
    permissions.wait(Unknown(PURGE.queue), step.again, step.done, 0.0)
    engine.answer(VIEW)
    step.started_s = FRESH_S
    permissions.check(step, PURGE, caller_named(OWNER), step.started_s)
    engine.answer(QueueNotFound(PURGE.queue))
    with pytest.raises(Unknown):
        permissions.check(step, PURGE, caller_named(OWNER), step.started_s)


def test_what_is_kept_of_queues_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.server.permissions._KEPT_MAX", 3)
    engine = ScriptedEngine()
    permissions = Permissions(engine, PolicyDecisions(region=REGION, secure=False, wall_s=lambda: 0.0))
    for number in range(10):
        step = Step()
        queue = f"{OWNER}/jobs{number}"
        permissions.wait(Unknown(queue), step.again, step.done, 0.0)
        engine.answer(QueueView(queue=queue, settings=QueueSettings(), created_at_ms=0, modified_at_ms=0))
        assert step.happened == ["again"]
    assert len(permissions._kept) <= 3


def test_every_command_is_about_a_queue_or_known_to_be_about_none() -> None:
    """A new one that names its queue in another way fails here, not in front of a stranger."""
    of_account = {commands.ListQueues, commands.BrowseQueues, commands.SetAccount, commands.ShowAccount}
    about_none = {commands.CreateQueue, *of_account}
    found = [kind for kind in vars(commands).values() if isinstance(kind, type) and issubclass(kind, Command)]
    assert len(found) > 12
    for kind in found:
        fields = {field.name for field in msgspec.structs.fields(kind)}
        assert kind in {Command, *about_none} or len({"queue", "source"} & fields) == 1
