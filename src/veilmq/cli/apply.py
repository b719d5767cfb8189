"""``veilmq apply``."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from veilmq.cli.command import CommandFailed, Json, UsageError, Yes, confirm, option, print_json
from veilmq.cli.connection import Endpoint, connect, environment
from veilmq.client.declared import DeclaredError, as_text, read_declared
from veilmq.client.plan import Plan, PlanRefused, make_plan
from veilmq.client.topics import Topics
from veilmq.client.transport import DEFAULT_ENDPOINT, Transport, key_of
from veilmq.server.settings import SETTINGS

DIFFERS = 3
"""The exit code of ``--dry-run`` where the server is not as declared."""

_SIGNS = {"create": "+", "change": "~", "delete": "-"}


def apply(
    file: Annotated[Path, Parameter(help="File of queues and topics: TOML, or ElasticMQ's (.conf).")],
    /,
    *,
    dry_run: Annotated[bool, option(f"Change nothing; exit code {DIFFERS} if something would be changed.")] = False,
    prune: Annotated[bool, option("Delete the queues and topics that are not in the file.")] = False,
    yes: Yes = False,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> int:
    """Make or update the queues and topics that a file declares, and print what changes."""
    try:
        declared = read_declared(file, others=[row.name for row in SETTINGS])
    except DeclaredError as error:
        raise UsageError(str(error)) from error
    transport, topics = connect(Transport, endpoint), Topics(Transport(endpoint), key=key_of(environment()))
    try:
        plan = make_plan(declared, transport=transport, topics=topics, prune=prune)
    except PlanRefused as error:
        raise CommandFailed(f"{error} Nothing was changed.") from error
    for note in declared.notes:
        print(f"veilmq: {note}", file=sys.stderr)
    if not json:
        for line in _lines(plan):
            print(line, flush=True)
    doomed = [step.name for step in plan.steps if step.action == "delete"]
    if doomed and not dry_run:
        confirm(f"Delete {', '.join(doomed)} and all messages in them at {endpoint}?", yes=yes)
    if not dry_run:
        plan.apply()
    if json:
        parts = ("action", "kind", "name", "differences")
        steps = [{part: getattr(step, part) for part in parts} for step in plan.steps]
        print_json({"steps": steps, **plan.counts(), "applied": not dry_run})
    else:
        print(f"Would be: {plan}" if dry_run else plan)
    return DIFFERS if dry_run and plan.steps else 0


def _lines(plan: Plan) -> Iterator[str]:
    for step in plan.steps:
        yield f"{_SIGNS[step.action]} {step.kind} {step.name}"
        for each in step.differences:
            old = "" if step.action == "create" else f"{_shown(each.old)} -> "
            yield f"    {each.attribute}: {old}{_shown(each.new)}"


def _shown(value: Any) -> str:
    return "none" if value is None or value in ("", []) else as_text(value)
