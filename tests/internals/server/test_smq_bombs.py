"""Bodies that only harm, over real sockets: refused as malformed (test_xml_reading has the cost), without harm."""

from collections.abc import Callable
from http.client import HTTPConnection

import pytest

from tests.internals.wire.smq.test_request import BOMBS
from veilmq.testing import RunningServer

HEADERS = {"x-mns-version": "2015-06-06", "Content-Type": "text/xml"}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_malformed_and_the_server_goes_on(bomb: Callable[[], bytes]) -> None:
    with RunningServer() as server:
        connection = HTTPConnection(server.endpoint.removeprefix("http://"), timeout=60)
        connection.request("PUT", "/queues/jobs", headers=HEADERS)
        connection.getresponse().read()
        connection.request("POST", "/queues/jobs/messages", bomb(), HEADERS)
        answer = connection.getresponse()
        assert b"<Code>MalformedXML</Code>" in answer.read()
        assert answer.status == 400
        connection.request("POST", "/queues/jobs/messages", "<Message><MessageBody>m</MessageBody></Message>", HEADERS)
        assert connection.getresponse().status == 201
        connection.close()
