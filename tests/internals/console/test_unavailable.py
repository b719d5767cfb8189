"""Pages where the store does not answer: each says so, and nothing that it cannot know."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients import boto
from tests.console.every_page import ACCOUNT, addresses
from tests.console.test_messages_page import _CHOICE, act
from tests.console.visitor import Visitor
from veilmq.core.commands import Command, Delete, Done, Receive
from veilmq.core.errors import StoreUnavailable
from veilmq.store.sqlite import SqliteStore
from veilmq.testing import RunningServer

OF_THE_SERVER = {"settings", "health", "audit", "login"}
FORMS_ALONE = {"queue-new"}


class Store:
    """What is in the way of the store, if anything is."""

    is_gone = False
    goes_with: type[Command] | None = None


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[RunningServer, type[Store]]]:
    submit = SqliteStore.submit

    def asked(engine: SqliteStore, command: Command, done: Done) -> None:
        if Store.is_gone:
            done(StoreUnavailable())
            return
        submit(engine, command, done)
        Store.is_gone = type(command) is Store.goes_with

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SqliteStore, "submit", asked)
        with RunningServer() as server:
            sqs: Any = boto.client(server.endpoint)
            url = sqs.create_queue(QueueName="orders")["QueueUrl"]
            sqs.send_message(QueueUrl=url, MessageBody="a body to be read")
            yield server, Store
            Store.is_gone = False


@pytest.fixture(autouse=True)
def there() -> Iterator[None]:
    """The store is there again after each test."""
    yield
    Store.is_gone, Store.goes_with = False, None


@pytest.mark.parametrize("page", sorted(addresses("orders").keys() - OF_THE_SERVER - FORMS_ALONE))
def test_a_page_says_so(running: tuple[RunningServer, type[Store]], page: str) -> None:
    server, store = running
    store.is_gone = True
    with Visitor(server) as visitor:
        seen = visitor.get(addresses("orders")[page])
    assert (seen.status, str(StoreUnavailable()) in seen.text) == (503, True), seen.text


@pytest.mark.parametrize("page", ["settings", "health", "audit"])
def test_pages_of_the_server_need_no_store(running: tuple[RunningServer, type[Store]], page: str) -> None:
    server, store = running
    store.is_gone = True
    with Visitor(server) as visitor:
        assert visitor.get(addresses("orders")[page]).status == 200


def test_what_was_received_is_shown_though_the_store_went_then(running: tuple[RunningServer, type[Store]]) -> None:
    """It is held by whoever received it: nobody else gets it for a while, and its receipt is nowhere else."""
    server, store = running
    path = f"/console/queues/{ACCOUNT}/orders/messages"
    with Visitor(server) as visitor:
        store.goes_with = Receive
        seen = visitor.post(path, do="receive", count="1")
    assert "a body to be read" in seen.text
    assert 'name="receipt.' in seen.html


def test_what_was_done_is_told_when_the_store_is_there_again(running: tuple[RunningServer, type[Store]]) -> None:
    server, store = running
    sqs: Any = boto.client(server.endpoint)
    url = sqs.create_queue(QueueName="done")["QueueUrl"]
    for body in "ab":
        sqs.send_message(QueueUrl=url, MessageBody=body)
    path = f"/console/queues/{ACCOUNT}/done/messages"
    with Visitor(server) as visitor:
        page = visitor.post(path, do="receive", count="2")
        store.goes_with = Delete
        seen = act(visitor, page, "delete", leases=_CHOICE.findall(page.html)[:1])
        assert (seen.status, "deleted-1" in seen.path) == (503, True)
        store.is_gone, store.goes_with = False, None
        assert "Deleted: 1." in visitor.get(seen.path).text
