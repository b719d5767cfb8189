"""``veilmq doctor``."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from veilmq.cli.data_folder import data_folder
from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import CommandFailed
from veilmq.cli.options import Json
from veilmq.cli.printing import print_aligned, print_json
from veilmq.cli.settings_options import Config, option_of, read_settings
from veilmq.cli.store_option import on_database
from veilmq.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the doctor: what should hold, whether it does, and where it does not."""

    check: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Examination:
    """What the doctor says about a ``folder`` or a ``store``, which is what ``kind`` says."""

    kind: str
    place: str
    ok: bool
    facts: Mapping[str, str | int]
    checks: list[Check]


def doctor(
    *,
    data: Annotated[str | None, option_of("data")] = None,
    store: Annotated[str | None, option_of("store")] = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Check a data folder or a database, also beside running servers; changes nothing.

    It is the one that serve would use with the same settings.
    """
    settings = read_settings({"data": data, "store": store}, config)
    examination = _folder(data, config) if settings.store is None else _database(settings)
    if json:
        print_json({examination.kind: examination.place} | _rest(examination))
    else:
        _print(examination)
    return 0 if examination.ok else 1


def _rest(examination: Examination) -> dict[str, Any]:
    return {"ok": examination.ok, "facts": examination.facts, "checks": examination.checks}


def _folder(data: str | None, config: Path | None) -> Examination:
    folder = data_folder(data, config)
    with needs_extra("server", command="doctor"):
        from veilmq.engines.embedded import FolderError
        from veilmq.engines.embedded.doctor import examine
    try:
        report = examine(folder)
    except FolderError as error:
        raise CommandFailed(str(error)) from error
    return _examined("folder", str(folder), report)


def _database(settings: ServerSettings) -> Examination:
    def work(parts: Any, url: str) -> Awaitable[tuple[str, Any]]:
        answer: Awaitable[tuple[str, Any]] = parts.examination(url, durability=settings.durability)
        return answer

    return _examined("store", *on_database(settings, command="doctor", work=work))


def _examined(kind: str, place: str, report: Any) -> Examination:
    checks = [Check(finding.check, finding.ok, finding.detail) for finding in report.findings]
    return Examination(kind, place, all(check.ok for check in checks), report.facts, checks)


def _print(examination: Examination) -> None:
    print_aligned([(examination.kind, examination.place), *examination.facts.items()])
    print()
    for check in examination.checks:
        print(f"{'ok    ' if check.ok else 'FAILED'}  {check.check}")
        if check.detail:
            print(f"        {check.detail}")
    failed = sum(not check.ok for check in examination.checks)
    print()
    print(f"{failed} of {len(examination.checks)} checks failed." if failed else "Every check is ok.")
