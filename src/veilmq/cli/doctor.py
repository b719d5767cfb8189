"""``veilmq doctor``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from veilmq.cli.data_folder import data_folder
from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import CommandFailed
from veilmq.cli.options import Json
from veilmq.cli.printing import print_aligned, print_json
from veilmq.cli.settings_options import Config, option_of, read_settings
from veilmq.cli.store_option import Databases, databases, done
from veilmq.store.urls import without_passwords


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
    store: Annotated[list[str] | None, option_of("store")] = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Check a data folder or a database, also beside running servers; changes nothing.

    It is the one that serve would use with the same settings. Of several
    databases it checks each, and whether they fit together.
    """
    settings = read_settings({"data": data, "store": store}, config)
    if settings.store is None:
        return _tell(_folder(data, config), json=json)
    found = databases(settings, command="doctor")
    urls = found.all()
    if len(urls) > 1:
        return _tell_all(*_several(found, urls, settings.durability), json=json)
    return _tell(_database(found, found.urls[0], settings.durability), json=json)


def _tell(examination: Examination, *, json: bool) -> int:
    if json:
        print_json(_document(examination))
    else:
        _print(examination)
        _print_verdict(examination.checks)
    return 0 if examination.ok else 1


def _tell_all(examinations: list[Examination], together: list[Check], *, json: bool) -> int:
    checks = [check for examination in examinations for check in examination.checks] + together
    ok = all(check.ok for check in checks)
    if json:
        each = [_document(examination) for examination in examinations]
        print_json({"ok": ok, "databases": each, "together": together})
    else:
        for examination in examinations:
            _print(examination)
        print_aligned([("together", f"{len(examinations)} databases")])
        _print_checks(together)
        _print_verdict(checks)
    return 0 if ok else 1


def _document(examination: Examination) -> dict[str, Any]:
    rest = {"ok": examination.ok, "facts": examination.facts, "checks": examination.checks}
    return {examination.kind: examination.place} | rest


def _folder(data: str | None, config: Path | None) -> Examination:
    folder = data_folder(data, config)
    with needs_extra("server", command="doctor"):
        from veilmq.store.sqlite.copying import examine
        from veilmq.store.sqlite.database import FolderError
    try:
        report = examine(folder)
    except FolderError as error:
        raise CommandFailed(str(error)) from error
    return _examined("folder", str(folder), report)


def _database(found: Databases, url: str, durability: str) -> Examination:
    return _examined("store", *done(lambda: found.parts.examination(url, durability=durability)))


def _several(found: Databases, urls: Mapping[int, str], durability: str) -> tuple[list[Examination], list[Check]]:
    """Examine each database, whatever becomes of the others, and all together."""
    examinations = []
    for url in urls.values():
        try:
            examinations.append(_database(found, url, durability))
        except CommandFailed as error:
            fault = Check("it can be examined", ok=False, detail=str(error))
            examinations.append(Examination("store", without_passwords(url), ok=False, facts={}, checks=[fault]))
    return examinations, _checks(done(lambda: found.parts.examine_together(urls)))


def _examined(kind: str, place: str, report: Any) -> Examination:
    checks = _checks(report.findings)
    return Examination(kind, place, all(check.ok for check in checks), report.facts, checks)


def _checks(findings: Iterable[Any]) -> list[Check]:
    return [Check(finding.check, finding.ok, finding.detail) for finding in findings]


def _print(examination: Examination) -> None:
    print_aligned([(examination.kind, examination.place), *examination.facts.items()])
    _print_checks(examination.checks)


def _print_checks(checks: list[Check]) -> None:
    print()
    for check in checks:
        print(f"{'ok    ' if check.ok else 'FAILED'}  {check.check}")
        for line in check.detail.splitlines():
            print(f"        {line}")
    print()


def _print_verdict(checks: list[Check]) -> None:
    failed = sum(not check.ok for check in checks)
    print(f"{failed} of {len(checks)} checks failed." if failed else "Every check is ok.")
