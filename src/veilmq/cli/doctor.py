"""``veilmq doctor``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from veilmq.cli.data_folder import data_folder
from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import CommandFailed
from veilmq.cli.options import Json
from veilmq.cli.printing import print_aligned, print_json
from veilmq.cli.settings_options import Config, option_of


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the doctor: what should hold, whether it does, and where it does not."""

    check: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Examination:
    """What the doctor says about a folder."""

    folder: str
    ok: bool
    facts: Mapping[str, str | int]
    checks: list[Check]


def doctor(*, data: Annotated[str | None, option_of("data")] = None, config: Config = None, json: Json = False) -> int:
    """Check a data folder, also beside a running server; opens it read-only.

    The folder is the one that serve would use with the same settings.
    """
    examination = _examine(data_folder(data, config))
    if json:
        print_json(examination)
    else:
        _print(examination)
    return 0 if examination.ok else 1


def _examine(folder: Path) -> Examination:
    with needs_extra("server", command="doctor"):
        from veilmq.engines.embedded import FolderError
        from veilmq.engines.embedded.doctor import examine
    try:
        report = examine(folder)
    except FolderError as error:
        raise CommandFailed(str(error)) from error
    checks = [Check(finding.check, finding.ok, finding.detail) for finding in report.findings]
    return Examination(str(folder), all(check.ok for check in checks), report.facts, checks)


def _print(examination: Examination) -> None:
    print_aligned([("folder", examination.folder), *examination.facts.items()])
    print()
    for check in examination.checks:
        print(f"{'ok    ' if check.ok else 'FAILED'}  {check.check}")
        if check.detail:
            print(f"        {check.detail}")
    failed = sum(not check.ok for check in examination.checks)
    print()
    print(f"{failed} of {len(examination.checks)} checks failed." if failed else "Every check is ok.")
