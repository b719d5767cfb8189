"""What is to be done so that a server has what a file declares: computed first, as steps, then applied.

The start of a server and ``veilmq apply`` share it, the first without a socket. What a file names of a queue, topic or
subscription becomes so; what it does not name stays as it is. A dead-letter queue comes before the queues that name it.
What the rules of ``core.settings`` refuse is found before the first step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from veilmq.client.api import Settings
from veilmq.client.declared import JSON_TEXTS, QUEUES, Declared, plain, with_endpoint, with_queue
from veilmq.client.messages import ClientError, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.client.topics import Topics
from veilmq.client.transport import Transport
from veilmq.core.errors import SettingsConflict
from veilmq.core.settings import QueueSettings, checked_settings, dead_letter_refusal
from veilmq.wire.sqs.names import full_name

COUNTED = {"create": "created", "change": "changed", "delete": "deleted"}
"""What a step does, and how it is counted."""


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
    differences: Sequence[Difference] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in their order, and how many declared queues, topics and subscriptions need none."""

    steps: tuple[Step, ...]
    unchanged: int

    def counts(self) -> dict[str, int]:
        """Return how many are created, changed, deleted and unchanged."""
        done = {word: sum(step.action == action for step in self.steps) for action, word in COUNTED.items()}
        return done | {"unchanged": self.unchanged}

    def __str__(self) -> str:
        """Return the counts as a line."""
        return ", ".join(f"{count} {word}" for word, count in self.counts().items())

    def apply(self) -> None:
        """Make the steps; raises ``ClientError`` and ``Unreachable``, which say how many were made."""
        for number, step in enumerate(self.steps):
            where, done = f"{step.kind} {step.name}", f"({number} of {len(self.steps)} steps are done"
            try:
                step.run()
            except ClientError as error:
                raise ClientError(error.code, f"{where}: {error.message} {done}.)", error.status) from error
            except Unreachable as error:
                raise Unreachable(error.endpoint, f"{error.reason}, at {where} {done})") from error


def make_plan(declared: Declared, *, transport: Transport, topics: Topics, prune: bool = False) -> Plan:
    """Return what is to be done at the server of ``transport`` and ``topics``.

    With ``prune`` what is not declared is deleted, of the kinds that the file has. Raises ``PlanRefused``,
    ``ClientError`` and ``Unreachable``.
    """
    steps = tuple(_Planner(declared, transport, topics, prune=prune).steps())
    known = len(declared.queues or ()) + len(declared.topics or ())
    return Plan(steps, known - sum(step.action != "delete" for step in steps))


class _Planner:
    def __init__(self, declared: Declared, transport: Transport, topics: Topics, *, prune: bool) -> None:
        self._queues, self._topics = declared.queues or {}, declared.topics or {}
        self._transport, self._api = transport, topics
        self._client = QueueClient(transport)
        existing = self._client.list_queues() if prune and declared.queues is not None else []
        self._doomed = [name for name in existing if name not in self._queues]
        self._prunes_topics = prune and declared.topics is not None

    def steps(self) -> Iterator[Step]:
        """Yield the steps: what is deleted comes last, queues after all that may name them."""
        found = self._check()
        for name, settings in self._queues.items():
            yield from self._queue_step(name, settings, found[name])
        for place, attributes in self._topics.items():
            yield from self._smq_step(place, attributes)
        for topic in self._api.names() if self._prunes_topics else ():
            names = self._api.names(topic) if topic in self._topics else []
            for place in [f"{topic}/subscriptions/{name}" for name in names] or [topic]:
                if place not in self._topics:
                    yield Step("delete", *_named(place), partial(self._api.delete, place))
        for name in self._doomed:
            yield Step("delete", "queue", name, partial(self._client.delete_queue, name))

    def _settings_of(self, name: str) -> Settings:
        return Settings(self._transport.endpoint, name, transport=self._transport)

    def _found(self, name: str) -> QueueSettings | None:
        """Return the settings of a queue of the server, or ``None``."""
        try:
            found = self._settings_of(name).show().settings
        except ClientError as error:
            if error.code == "QueueNotFound":
                return None
            raise
        return found.changed({field: plain(getattr(found, field)) for field in QUEUES})

    def _check(self) -> dict[str, QueueSettings | None]:
        """Return the queues that are declared, or named by those and by subscriptions, as the server has them.

        Raises ``PlanRefused`` where they would contradict themselves or each other.
        """
        targets = {name: each.get("dead_letter_queue") for name, each in self._queues.items()}
        named = [*self._queues, *targets.values(), *(each.get("queue") for each in self._topics.values())]
        found = {name: self._found(name) for name in dict.fromkeys(filter(None, named))}
        after = dict(found)
        for name, changes in self._queues.items():
            try:
                after[name] = checked_settings(found[name], changes)
            except SettingsConflict as error:
                raise PlanRefused(f"queue {name}: {error.setting}: {error}") from None
        for name, target in targets.items():
            settings = after[name]
            assert settings is not None, "it is declared"
            if (kept := settings.dead_letter_queue) in self._doomed:
                raise PlanRefused(f"queue {name}: its dead-letter queue {kept} would be deleted; declare it, too.")
            if target and (refusal := dead_letter_refusal(name, settings, target, after[target])):
                raise PlanRefused(f"queue {name}: {refusal}")
        for place, attributes in self._topics.items():
            if (to := attributes.get("queue")) and (after[to] is None or to in self._doomed):
                raise PlanRefused(f"{' '.join(_named(place))}: there is no queue {to}; declare it.")
        return found

    def _queue_step(self, name: str, wanted: Mapping[str, Any], found: QueueSettings | None) -> Iterator[Step]:
        old, new = msgspec.to_builtins(found or QueueSettings()), msgspec.to_builtins(wanted)
        had, tags = old["tags"], new.pop("tags", old["tags"])
        changes = {field: value for field, value in new.items() if not found or not _same(field, old[field], value)}
        shown = [Difference(field, old[field] if found else None, value) for field, value in changes.items()]
        changed = sorted(key for key in had | tags if had.get(key) != tags.get(key))
        shown += [Difference(f"tags.{key}", had.get(key), tags.get(key)) for key in changed]
        settings, client = self._settings_of(name), self._client

        def change() -> None:
            if changes:
                settings.set(changes)
            if gone := [key for key in changed if key not in tags]:
                client.untag(name, gone)
            if put := {key: tags[key] for key in changed if key in tags}:
                client.tag(name, put)

        if found is None:
            yield Step("create", "queue", name, partial(settings.create, changes, tags=tags), shown)
        elif shown:
            yield Step("change", "queue", name, change, shown)

    def _smq_step(self, place: str, wanted: Mapping[str, str]) -> Iterator[Step]:
        """Yield what a topic or a subscription needs, if anything."""
        (kind, name), found = _named(place), self._api.show(place)
        old = with_queue(found or {})
        changes = {each: text for each, text in wanted.items() if old.get(each, "") != text}
        shown = [Difference(each, old.get(each), text) for each, text in changes.items()]
        fixed = [each for each in changes if kind == "subscription" and each != "NotifyStrategy"]
        if found is None:
            yield Step("create", kind, name, partial(self._create, place, wanted), shown)
        elif fixed:
            why = "cannot be changed; give the subscription another name, and --prune this one."
            raise PlanRefused(f"{kind} {name}: {', '.join(fixed)} {why}")
        elif changes:
            yield Step("change", kind, name, partial(self._api.set, place, changes), shown)

    def _create(self, place: str, wanted: Mapping[str, str]) -> None:
        account = full_name(self._client.queue_url(wanted["queue"])).partition("/")[0] if "queue" in wanted else ""
        self._api.create(place, with_endpoint(wanted, account))


def _named(place: str) -> tuple[str, str]:
    """Return kind and name of a topic or a subscription."""
    name = place.replace("/subscriptions/", "/")
    return "subscription" if "/" in name else "topic", name


def _same(field: str, old: Any, new: Any) -> bool:
    if field in JSON_TEXTS and old and new:
        return bool(msgspec.json.decode(old) == msgspec.json.decode(new))
    return sorted(old) == sorted(new) if field == "redrive_sources" else bool(old == new)
