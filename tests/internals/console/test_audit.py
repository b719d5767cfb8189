"""The audit log: two lines a change, on the disk before it is made."""

import asyncio
import stat
from pathlib import Path

import pytest

from veilmq.console.audit import DONE, AuditEntry, AuditLog, AuditLogError


def entry(number: int, outcome: str = "asked") -> AuditEntry:
    return AuditEntry(
        at_ms=number,
        id=f"{number}",
        who="everyone",
        peer=None,
        what="PurgeQueue",
        queue="a/b",
        after={},
        outcome=outcome,
    )


@pytest.fixture(params=["file", "memory"])
def audit(request: pytest.FixtureRequest, tmp_path: Path) -> AuditLog:
    """A log of either kind."""
    return AuditLog(tmp_path / "audit.jsonl" if request.param == "file" else None)


async def written(audit: AuditLog, *entries: AuditEntry) -> list[AuditEntry]:
    for each in entries:
        await audit.write(each)
    return await audit.last(10)


def test_the_newest_comes_first_and_a_change_once(audit: AuditLog) -> None:
    lines = asyncio.run(written(audit, entry(1), entry(1, DONE), entry(2), entry(3), entry(3, "AccessDenied")))
    assert [(line.id, line.outcome) for line in lines] == [("3", "AccessDenied"), ("2", "asked"), ("1", DONE)]


def test_an_empty_log_tells_nothing(audit: AuditLog) -> None:
    assert asyncio.run(audit.last(10)) == []


def test_only_the_owner_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    asyncio.run(written(AuditLog(path), entry(1)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_was_rotated_away_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path)
    asyncio.run(written(audit, entry(1)))
    path.rename(tmp_path / "audit.1")
    assert [line.id for line in asyncio.run(written(audit, entry(2)))] == ["2"]


def test_lines_of_others_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path)
    asyncio.run(written(audit, entry(1)))
    with path.open("a") as file:
        file.write("half a li")
    with path.open("a") as file:
        file.write("\n")
    assert [line.id for line in asyncio.run(written(audit, entry(2)))] == ["2", "1"]


def test_a_line_that_was_torn_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path)
    asyncio.run(written(audit, entry(1)))
    with path.open("a") as file:
        file.write('{"at_ms":7,"id":"half a li')
    assert [line.id for line in asyncio.run(written(audit, entry(2), entry(3)))] == ["3", "2", "1"]


@pytest.mark.parametrize("line", [b'{"id":"\xff"}', b'{"after":' * 100_000, b"\x00" * 100])
def test_a_line_that_no_log_has_hides_no_other(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(line + b"\n")
    assert [line.id for line in asyncio.run(written(AuditLog(path), entry(2)))] == ["2"]


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "nowhere" / "audit.jsonl")
    with pytest.raises(AuditLogError, match=r"cannot be written \(No such file or directory\), so nothing was changed"):
        asyncio.run(audit.write(entry(1)))
