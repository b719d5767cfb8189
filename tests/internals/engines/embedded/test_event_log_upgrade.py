"""A folder from before the event log."""

import contextlib
import sqlite3
from pathlib import Path

from tests.store.host import hosting
from tests.store.logged import logging_to, outcomes
from tests.tidy.tree import ROOT
from veilmq.engines.embedded.folder import DATABASE_NAME

UPGRADE = ROOT / "src" / "veilmq" / "engines" / "embedded" / "upgrades" / "008_events.sql"


def test_leases_of_a_folder_from_before_the_event_log(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with hosting(folder) as host:
        host.create()
        host.send("a")
        receipt = host.receive_one().receipt
    with contextlib.closing(sqlite3.connect(folder / DATABASE_NAME)) as database:
        for table in ("event_batch", "expired_receipt", "logged_lane"):
            database.execute(f"DROP TABLE {table}")
        database.execute("ALTER TABLE lease DROP COLUMN log")
        database.executescript(UPGRADE.read_text(encoding="utf-8"))
    with logging_to(folder) as host:
        assert host.delete(receipt)[0].value == "live"
        host.send("b")
        host.delete(host.receive_one().receipt)
        assert outcomes(host) == [("deleted", 0)], "of the second one: the first was not logged"
