"""Declared queues and topics at the start of a server: made or updated before it answers its first request.

The file and the steps are those of ``veilmq apply`` (``client.declared``), whose requests travel
in the process here, as the account that owns the server.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from urllib3 import HTTPResponse

from veilmq.client import ClientError
from veilmq.client.declared import COUNTED, DeclaredError, PlanRefused, make_plan, read_declared
from veilmq.client.topics import Topics
from veilmq.client.transport import HttpReply, Transport
from veilmq.console.asking import Answer, Asked
from veilmq.server.authentication import Authentication
from veilmq.server.settings import SETTINGS, ServerSettings, SettingError
from veilmq.wire.exchange import Caller, caller_named

log = logging.getLogger(__name__)

_Ask = Callable[[Asked], Coroutine[Any, Any, Answer]]


class _InProcess(Transport):
    """Carries requests to the queues of this process, for threads beside its event loop."""

    def __init__(self, endpoint: str, ask: _Ask, caller: Caller | None) -> None:
        super().__init__(endpoint)
        self._ask = ask
        self._caller = caller
        self._loop = asyncio.get_running_loop()

    def request(
        self, method: str, target: str, *, headers: Mapping[str, str], body: bytes = b"", **_: object
    ) -> HttpReply:
        """Return the reply as it would come over HTTP."""
        lower = {name.lower().encode(): value.encode() for name, value in headers.items()}
        asked = Asked(method.encode(), target.encode() or b"/", lower, body, self._caller, None)
        answer = asyncio.run_coroutine_threadsafe(self._ask(asked), self._loop).result()
        return HTTPResponse(body=answer.body, status=answer.status)


class Declarations:
    """What the ``queues_file`` of a server declares."""

    def __init__(self, settings: ServerSettings) -> None:
        """Read and check the file; raises ``SettingError``."""
        assert settings.queues_file is not None, "there is a file"
        self._path, self._account = settings.queues_file, settings.account
        try:
            self._declared = read_declared(self._path, others=[row.name for row in SETTINGS])
        except DeclaredError as error:
            raise self._refusal(str(error).removeprefix(f"{self._path}: ")) from None

    async def apply(self, ask: _Ask, *, endpoint: str, authentication: Authentication | None) -> None:
        """Make or update what is declared, in the server's own account; raises ``SettingError``."""
        caller = None
        if authentication is not None:
            caller = caller_named(self._account)
            if self._account not in {key.caller.account for key in authentication.keys}:
                problem = "it has declared queues but no key in the credentials file; choose an account with a key"
                raise SettingError("account", value=self._account, problem=problem)
        for note in self._declared.notes:
            log.warning("%s: %s", self._path, note)
        try:
            await asyncio.to_thread(self._apply, _InProcess(endpoint, ask, caller))
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
