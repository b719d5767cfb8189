"""Each row of the reference page of SQS, demonstrated against a real server.

The page and the demonstrations must have the same rows.
"""

import asyncio
import runpy
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.clients.sqs_reference import (
    ATTRIBUTES,
    CLOCK_AHEAD_S,
    COMMON_ERRORS,
    ENTRY_ERRORS,
    ERRORS,
    QUERY_ERRORS,
    SESSION_EXPIRED_AT,
    SIGNATURE_ERRORS,
    Stage,
    post_form,
)
from tests.server.keys import REGION, TEXT, written
from tests.store.postgres_host import emptied, making_database, prepare
from tests.tidy.tree import ROOT
from veilmq.testing import RunningServer
from veilmq.wire.sqs.errors import CODES

BY_NAME = {code.name: code for code in CODES}
SERVER_FAULTS = {"InternalFailure", "ServiceUnavailableException"}
"""Errors of every action that no request alone can provoke."""


NewStore = Callable[[], dict[str, Any]]


@pytest.fixture(scope="module", params=["memory", "postgres"])
def new_store(request: pytest.FixtureRequest) -> Iterator[NewStore]:
    """Return a function that makes an empty store, and returns the server settings for it."""
    with ExitStack() as closing:

        def new() -> dict[str, Any]:
            if request.param == "memory":
                return {}
            url = closing.enter_context(making_database(request.getfixturevalue("postgres_url")))
            asyncio.run(prepare(url))
            return emptied(url)

        yield new


@pytest.fixture(scope="module")
def stage(new_store: NewStore) -> Iterator[Stage]:
    with RunningServer(**new_store()) as server, Stage(server) as made:
        yield made


@pytest.fixture(scope="module")
def narrow(new_store: NewStore) -> Iterator[Stage]:
    with RunningServer(in_flight_max=1, **new_store()) as server, Stage(server) as made:
        yield made


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys = written(
        tmp_path_factory.mktemp("keys") / "keys.toml", TEXT.replace("2100-01-01T00:00:00Z", SESSION_EXPIRED_AT)
    )
    with RunningServer(credentials=keys, region=REGION, wall_s=lambda: time.time() + CLOCK_AHEAD_S) as server:
        yield server.endpoint


def ids(row: tuple[str, ...]) -> str:
    return "-".join(row)


@pytest.mark.parametrize("row", ERRORS, ids=ids)
def test_each_error_of_each_action(row: tuple[str, str], stage: Stage, narrow: Stage) -> None:
    reply = ERRORS[row](narrow if row == ("ReceiveMessage", "OverLimit") else stage)
    assert (reply.kind, reply.status) == (row[1], BY_NAME[row[1]].status), reply.body
    assert reply.body["message"]


@pytest.mark.parametrize("row", ENTRY_ERRORS, ids=ids)
def test_each_error_of_batch_entries(row: tuple[str, str], stage: Stage) -> None:
    """The reply succeeds; the code of the entry is the one of the Query protocol."""
    reply = ENTRY_ERRORS[row](stage)
    assert reply.status == 200
    (failed,) = reply.body["Failed"]
    assert (failed["Code"], failed["SenderFault"]) == (BY_NAME[row[1]].query, True)


@pytest.mark.parametrize("name", COMMON_ERRORS)
def test_each_error_common_to_all_actions(name: str, stage: Stage) -> None:
    assert COMMON_ERRORS[name](stage).kind == name


@pytest.mark.parametrize("name", QUERY_ERRORS)
def test_each_query_error_common_to_all_actions(name: str, stage: Stage) -> None:
    status, document = post_form(stage, QUERY_ERRORS[name])
    assert status == BY_NAME[name].status
    assert f"<Code>{BY_NAME[name].query}</Code>" in document


@pytest.mark.parametrize("name", SIGNATURE_ERRORS)
def test_each_signature_error(name: str, signed: str) -> None:
    assert SIGNATURE_ERRORS[name](signed) == (BY_NAME[name].status, BY_NAME[name].query)


def test_full_store_is_service_unavailable(tmp_path: Path) -> None:
    with RunningServer(data=tmp_path / "data", free_space_reserve_bytes=1 << 50) as server, Stage(server) as stage:
        reply = stage.request("CreateQueue", QueueName="a")
    assert (reply.kind, reply.status) == ("ServiceUnavailableException", 503)


@pytest.mark.parametrize("row", ATTRIBUTES, ids=ids)
def test_each_attribute_of_each_action(row: tuple[str, str], stage: Stage) -> None:
    ATTRIBUTES[row](stage)


def test_page_and_demonstrations_have_the_same_rows() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "sqs_page.py"))
    for table, rows in (("ERRORS", ERRORS), ("ENTRY_ERRORS", ENTRY_ERRORS)):
        assert set(rows) == {(action, code.name) for action, codes in page[table].items() for code in codes}
    assert set(COMMON_ERRORS) | SERVER_FAULTS == {
        code.name for code in (*page["EVERYWHERE"], *page["BY_PROTOCOL"]["AWS JSON"])
    }
    assert set(QUERY_ERRORS) == {code.name for code in page["BY_PROTOCOL"]["Query"]}
    assert set(SIGNATURE_ERRORS) == {code.name for code in page["WITH_CREDENTIALS"]}
    assert set(ATTRIBUTES) == {(action, name) for action, names in page["ATTRIBUTES"].items() for name in names}
