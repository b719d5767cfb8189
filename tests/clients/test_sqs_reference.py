"""Each row of docs/protocols/sqs.md over a real socket; rows without a test fail, and tests without a row."""

import asyncio
import runpy
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.clients.sqs_reference import (
    ANYWHERE,
    ATTRIBUTES,
    CLOCK_AHEAD_S,
    ENDED,
    ENTRY_ERRORS,
    ERRORS,
    QUERY,
    SIGNED,
    Stage,
    posted,
)
from tests.server.keys import REGION, TEXT, written
from tests.store.postgres_host import emptied, making_database, prepare
from tests.tidy.tree import ROOT
from veilmq.testing import RunningServer
from veilmq.wire.sqs.errors import CODES

BY_NAME = {code.name: code for code in CODES}
SERVER_ERRORS = {"InternalFailure", "ServiceUnavailableException"}
"""Errors that do not depend on the request."""


Place = Callable[[], dict[str, Any]]


@pytest.fixture(scope="module", params=["memory", "postgres"])
def new_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Return a function for the settings of a server on an empty store."""
    with ExitStack() as closing:

        def new() -> dict[str, Any]:
            if request.param == "memory":
                return {}
            url = closing.enter_context(making_database(request.getfixturevalue("postgres_url")))
            asyncio.run(prepare(url))
            return emptied(url)

        yield new


@pytest.fixture(scope="module")
def stage(new_place: Place) -> Iterator[Stage]:
    with RunningServer(**new_place()) as server, Stage(server) as made:
        yield made


@pytest.fixture(scope="module")
def narrow(new_place: Place) -> Iterator[Stage]:
    with RunningServer(in_flight_max=1, **new_place()) as server, Stage(server) as made:
        yield made


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys = written(tmp_path_factory.mktemp("keys") / "keys.toml", TEXT.replace("2100-01-01T00:00:00Z", ENDED))
    with RunningServer(credentials=keys, region=REGION, wall_s=lambda: time.time() + CLOCK_AHEAD_S) as server:
        yield server.endpoint


def ids(row: tuple[str, ...]) -> str:
    return "-".join(row)


@pytest.mark.parametrize("row", ERRORS, ids=ids)
def test_an_action_raises_its_error(row: tuple[str, str], stage: Stage, narrow: Stage) -> None:
    reply = ERRORS[row](narrow if row == ("ReceiveMessage", "OverLimit") else stage)
    assert (reply.kind, reply.status) == (row[1], BY_NAME[row[1]].status), reply.body
    assert reply.body["message"]


@pytest.mark.parametrize("row", ENTRY_ERRORS, ids=ids)
def test_an_entry_of_a_batch_has_its_error(row: tuple[str, str], stage: Stage) -> None:
    """With the code of the Query protocol, in a successful reply."""
    reply = ENTRY_ERRORS[row](stage)
    assert reply.status == 200
    (failed,) = reply.body["Failed"]
    assert (failed["Code"], failed["SenderFault"]) == (BY_NAME[row[1]].query, True)


@pytest.mark.parametrize("name", ANYWHERE)
def test_every_action_raises_the_error_of_json(name: str, stage: Stage) -> None:
    assert ANYWHERE[name](stage).kind == name


@pytest.mark.parametrize("name", QUERY)
def test_every_action_raises_the_error_of_query(name: str, stage: Stage) -> None:
    status, document = posted(stage, QUERY[name])
    assert status == BY_NAME[name].status
    assert f"<Code>{BY_NAME[name].query}</Code>" in document


@pytest.mark.parametrize("name", SIGNED)
def test_a_signature_raises_its_error(name: str, signed: str) -> None:
    assert SIGNED[name](signed) == (BY_NAME[name].status, BY_NAME[name].query)


def test_a_full_store_is_unavailable(tmp_path: Path) -> None:
    with RunningServer(data=tmp_path / "data", free_space_reserve_bytes=1 << 50) as server, Stage(server) as stage:
        reply = stage.request("CreateQueue", QueueName="a")
    assert (reply.kind, reply.status) == ("ServiceUnavailableException", 503)


@pytest.mark.parametrize("row", ATTRIBUTES, ids=ids)
def test_an_action_has_its_attribute(row: tuple[str, str], stage: Stage) -> None:
    ATTRIBUTES[row](stage)


def test_every_row_of_the_page_is_tested() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "sqs_page.py"))
    for table, rows in (("ERRORS", ERRORS), ("ENTRY_ERRORS", ENTRY_ERRORS)):
        assert set(rows) == {(action, code.name) for action, codes in page[table].items() for code in codes}
    assert set(ANYWHERE) | SERVER_ERRORS == {
        code.name for code in (*page["EVERYWHERE"], *page["BY_PROTOCOL"]["AWS JSON"])
    }
    assert set(QUERY) == {code.name for code in page["BY_PROTOCOL"]["Query"]}
    assert set(SIGNED) == {code.name for code in page["WITH_CREDENTIALS"]}
    assert set(ATTRIBUTES) == {(action, name) for action, names in page["ATTRIBUTES"].items() for name in names}
