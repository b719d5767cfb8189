"""What is to be done so that a server has what a file declares: computed first, as steps, then applied.

The start of a server and ``veilmq apply`` share it, the first without a socket. What a file names of a queue, topic or
subscription becomes so; what it does not name stays as it is. A dead-letter queue comes before the queues that name it.
What the rules of ``core.settings`` refuse is found before the first step.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from veilmq.client.api import Settings
from veilmq.client.declared import JSON_TEXTS, OWN, Declared, DeclaredQueue, with_queue
from veilmq.client.messages import ClientError
from veilmq.client.sqs import QueueClient
from veilmq.client.topics import Topics
from veilmq.client.transport import Transport
from veilmq.core.errors import SettingsConflict
from veilmq.core.settings import QueueSettings, checked_settings, dead_letter_refusal
from veilmq.wire.sqs.names import full_name

COUNTED = {"create": "created", "change": "changed", "delete": "deleted"}
"""What a step does, and how it is counted."""

_STRATEGY = "NotifyStrategy"


class PlanRefused(Exception):
    """What is declared cannot be reached from what the server has; ``str()`` says why. Nothing was changed."""


class Difference(msgspec.Struct, frozen=True):
    """One attribute; ``old`` is null where there was none, ``new`` where there is to be none."""

    attribute: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Step:
    """One change: ``action`` is one of ``COUNTED``, ``kind`` is queue, topic or subscription; ``run`` makes it."""

    action: str
    kind: str
    name: str
    run: Callable[[], object]
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in their order, and how many declared queues, topics and subscriptions need none."""

    steps: tuple[Step, ...]
    unchanged: int

    def counts(self) -> dict[str, int]:
        """Return how many are created, changed, deleted and unchanged."""
        done = {word: sum(step.action == action for step in self.steps) for action, word in COUNTED.items()}
        return done | {"unchanged": self.unchanged}

    def apply(self) -> None:
        """Make the steps; raises ``ClientError``, which says how many were made, and ``Unreachable``."""
        for number, step in enumerate(self.steps):
            try:
                step.run()
            except ClientError as error:
                text = f"{step.kind} {step.name}: {error.message} ({number} of {len(self.steps)} steps are done.)"
                raise ClientError(error.code, text, error.status) from error


def make_plan(declared: Declared, *, transport: Transport, topics: Topics, prune: bool = False) -> Plan:
    """Return what is to be done at the server of ``transport`` and ``topics``.

    With ``prune`` what is not declared is deleted, of the kinds that the file has. Raises ``PlanRefused``,
    ``ClientError`` and ``Unreachable``.
    """
    steps = tuple(_Planner(declared, transport, topics, prune=prune).steps())
    subscriptions = sum(len(topic.subscriptions) for topic in (declared.topics or {}).values())
    known = len(declared.queues or ()) + len(declared.topics or ()) + subscriptions
    return Plan(steps, known - sum(step.action != "delete" for step in steps))


class _Planner:
    def __init__(self, declared: Declared, transport: Transport, topics: Topics, *, prune: bool) -> None:
        self._queues, self._topics = declared.queues or {}, declared.topics or {}
        self._transport, self._api, self._prune = transport, topics, prune
        self._client = QueueClient(transport)
        existing = self._client.list_queues() if prune and declared.queues is not None else []
        self._doomed = [name for name in existing if name not in self._queues]
        self._prunes_topics = prune and declared.topics is not None

    def steps(self) -> Iterator[Step]:
        """Yield the steps: what is deleted comes last, queues after all that may name them."""
        found = {name: self._found(name) for name in self._queues}
        self._check(found)
        for name, queue in self._queues.items():
            yield from self._queue_step(name, queue, found[name])
        for topic, content in self._topics.items():
            yield from self._smq_step("topic", topic, content.attributes)
            there = self._api.names(topic) if self._prune and self._api.show(topic) else []
            for name, attributes in content.subscriptions.items():
                yield from self._smq_step("subscription", f"{topic}/subscriptions/{name}", attributes)
            for name in there:
                if name not in content.subscriptions:
                    place = f"{topic}/subscriptions/{name}"
                    yield Step("delete", "subscription", f"{topic}/{name}", partial(self._api.delete, place))
        for topic in self._api.names() if self._prunes_topics else ():
            if topic not in self._topics:
                yield Step("delete", "topic", topic, partial(self._api.delete, topic))
        for name in self._doomed:
            yield Step("delete", "queue", name, partial(self._client.delete_queue, name))

    def _found(self, name: str) -> QueueSettings | None:
        """Return the settings of a queue of the server, with other queues as the file has them; or ``None``."""
        try:
            found = self._settings_of(name).show().settings
        except ClientError as error:
            if error.code == "QueueNotFound":
                return None
            raise
        target, sources = found.dead_letter_queue, tuple(map(_own, found.redrive_sources))
        return found.changed({"dead_letter_queue": _own(target) if target else "", "redrive_sources": sources})

    def _settings_of(self, name: str) -> Settings:
        return Settings(self._transport.endpoint, name, transport=self._transport)

    def _check(self, found: Mapping[str, QueueSettings | None]) -> None:
        """Raise ``PlanRefused`` where the queues would contradict themselves or each other."""
        after: dict[str, QueueSettings] = {}
        for name, queue in self._queues.items():
            try:
                after[name] = checked_settings(found[name], queue.settings)
            except SettingsConflict as error:
                raise PlanRefused(f"queue {name}: {error.setting}: {error}") from None
        for name, settings in after.items():
            target = settings.dead_letter_queue.removeprefix(OWN)
            if target in self._doomed:
                raise PlanRefused(f"queue {name}: its dead-letter queue {target} would be deleted; declare it, too.")
            if target and "dead_letter_queue" in self._queues[name].settings:
                theirs = after.get(target) or self._found(target)
                if refusal := dead_letter_refusal(OWN + name, settings, OWN + target, theirs):
                    raise PlanRefused(f"queue {name}: {refusal.replace(OWN, '')}")
        for topic, content in self._topics.items():
            for name, attributes in content.subscriptions.items():
                to = attributes.get("queue")
                if to and to not in after and (to in self._doomed or self._found(to) is None):
                    raise PlanRefused(f"subscription {topic}/{name}: there is no queue {to}; declare it.")

    def _queue_step(self, name: str, queue: DeclaredQueue, found: QueueSettings | None) -> Iterator[Step]:
        old = msgspec.to_builtins(QueueSettings() if found is None else found)
        differences = [
            Difference(field, None if found is None else _plain(old[field]), _plain(value))
            for field, value in msgspec.to_builtins(queue.settings).items()
            if found is None or not _same(field, old[field], value)
        ]
        tags = old["tags"] if queue.tags is None else queue.tags
        changed = sorted(key for key in {**old["tags"], **tags} if old["tags"].get(key) != tags.get(key))
        shown = (*differences, *(Difference(f"tags.{key}", old["tags"].get(key), tags.get(key)) for key in changed))
        settings, client = self._settings_of(name), self._client
        changes = {each.attribute: queue.given[each.attribute] for each in differences}

        def change() -> None:
            if changes:
                settings.set(changes)
            if gone := [key for key in changed if key not in tags]:
                client.untag(name, gone)
            if put := {key: tags[key] for key in changed if key in tags}:
                client.tag(name, put)

        if found is None:
            yield Step("create", "queue", name, partial(settings.create, queue.given, tags=tags), shown)
        elif shown:
            yield Step("change", "queue", name, change, shown)

    def _smq_step(self, kind: str, place: str, wanted: Mapping[str, str]) -> Iterator[Step]:
        """Yield what a topic or a subscription needs, if anything."""
        name, found = place.replace("/subscriptions/", "/"), self._api.show(place)
        old = with_queue(found or {})
        new = tuple(Difference(each, old.get(each), text) for each, text in wanted.items() if old.get(each) != text)
        fixed = [each.attribute for each in new if kind == "subscription" and each.attribute != _STRATEGY]
        if found is None:
            yield Step("create", kind, name, partial(self._create, place, wanted), new)
        elif fixed:
            why = "cannot be changed; give the subscription another name, and --prune this one."
            raise PlanRefused(f"{kind} {name}: {', '.join(fixed)} {why}")
        elif new:
            changes = {each.attribute: each.new for each in new}
            yield Step("change", kind, name, partial(self._api.set, place, changes), new)

    def _create(self, place: str, wanted: Mapping[str, str]) -> None:
        attributes = dict(wanted)
        if queue := attributes.pop("queue", None):
            account = full_name(self._client.queue_url(queue)).partition("/")[0]
            attributes["Endpoint"] = f"acs:mns::{account}:queues/{queue}"
        self._api.create(place, attributes)


def _own(queue: str) -> str:
    return OWN + queue.rpartition("/")[2]


def _plain(value: Any) -> Any:
    """Return a value with queues as the file has them."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.removeprefix(OWN) if isinstance(value, str) else value


def _same(field: str, old: Any, new: Any) -> bool:
    if field in JSON_TEXTS and old and new:
        return bool(msgspec.json.decode(old) == msgspec.json.decode(new))
    return sorted(old) == sorted(new) if field == "redrive_sources" else bool(old == new)
