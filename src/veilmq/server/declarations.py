"""Create or update declared queues and topics before the server answers its first request.

File and steps are those of ``veilmq apply`` (``client.declared``); the requests are sent in the process, as the account
that owns the server.
"""

import asyncio
import logging
from collections.abc import Mapping

from urllib3 import HTTPResponse

from veilmq.client import ClientError
from veilmq.client.declared import COUNTED, DeclaredError, PlanRefused, make_plan, read_declared
from veilmq.client.topics import Topics
from veilmq.client.transport import HttpReply, Transport
from veilmq.console.api_client import ApiRequest, SendRequest
from veilmq.server.authentication import Authentication
from veilmq.server.settings import SETTINGS, ServerSettings, SettingError
from veilmq.wire.exchange import Caller, caller_named

log = logging.getLogger(__name__)


class _InProcess(Transport):
    """Sends requests to the queues of this process, from threads beside its event loop."""

    def __init__(self, endpoint: str, send_request: SendRequest, caller: Caller | None) -> None:
        super().__init__(endpoint)
        self._send_request = send_request
        self._caller = caller
        self._loop = asyncio.get_running_loop()

    def request(
        self, method: str, target: str, *, headers: Mapping[str, str], body: bytes = b"", **_: object
    ) -> HttpReply:
        encoded = {name.lower().encode(): value.encode() for name, value in headers.items()}
        request = ApiRequest(method.encode(), target.encode() or b"/", encoded, body, self._caller, None)
        reply = asyncio.run_coroutine_threadsafe(self._send_request(request), self._loop).result()
        return HTTPResponse(body=reply.body, status=reply.status)


class Declarations:
    """The queues and topics in the ``queues_file`` of a server."""

    def __init__(self, settings: ServerSettings) -> None:
        assert settings.queues_file is not None, "there is a file"
        self._path, self._account = settings.queues_file, settings.account
        try:
            self._declared = read_declared(self._path, others=[row.name for row in SETTINGS])
        except DeclaredError as error:
            raise self._refusal(str(error).removeprefix(f"{self._path}: ")) from None

    async def apply(self, send_request: SendRequest, *, endpoint: str, authentication: Authentication | None) -> None:
        """Create or update the declared queues and topics in the server's account; raises ``SettingError``."""
        caller = None
        if authentication is not None:
            caller = caller_named(self._account)
            if self._account not in {key.caller.account for key in authentication.keys}:
                problem = "it has declared queues but no key in the credentials file; choose an account with a key"
                raise SettingError("account", value=self._account, problem=problem)
        for note in self._declared.notes:
            log.warning("%s: %s", self._path, note)
        try:
            await asyncio.to_thread(self._apply, _InProcess(endpoint, send_request, caller))
        except (PlanRefused, ClientError) as error:
            raise self._refusal(str(error)) from error

    def _apply(self, transport: Transport) -> None:
        plan = make_plan(self._declared, transport=transport, topics=Topics(transport))
        plan.apply()
        for step in plan.steps:
            log.info("declared %s %s: %s", step.kind, step.name, COUNTED[step.action])
        log.info("declared queues and topics: %s", plan)

    def _refusal(self, problem: str) -> SettingError:
        return SettingError("queues_file", value=self._path, problem=problem)
