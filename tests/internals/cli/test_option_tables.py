"""Options made from tables: each setting of queues and of the server has one."""

import re

from tests.cli.conftest import command
from veilmq.cli.queue_options import FIELDS
from veilmq.core.settings import QueueSettings
from veilmq.server.settings import SETTINGS


def test_there_is_an_option_for_every_setting() -> None:
    others = {
        "visibility_rules",
        "in_flight_max",
        "event_log",
        "receives_max",
        "redrive_sources",
        "fifo",
        "tags",
        "purges",
    }
    here = {*FIELDS.values(), *others}
    assert here == set(QueueSettings.__struct_fields__)


def test_help_is_made_from_the_schema() -> None:
    text = re.sub(r"[│\s]+", " ", command("serve", "--help", COLUMNS="200").stdout)
    for row in SETTINGS:
        assert f" {row.flag} " in text
        assert row.description in text
        if row.kind.placeholder:
            expected = f"{row.flag} {row.kind.placeholder} {row.description} Must be {row.kind.allowed}."
            assert f"{expected} [default: {row.default_text}]" in text
