"""Faults inside an answer that says 200: entries of a batch that fail, and successes that did not happen.

They take a request and its answer apart, so they know one protocol: Amazon SQS over JSON. A request that is not of that
kind is answered with what the test should do instead.
"""

import json
from functools import partial
from typing import Any

from veilmq.server.http_parser import Handler, Pending, Request
from veilmq.testing.shadow import Shadow

_HEADERS = b"Content-Type: application/x-amz-json-1.0\r\n"
_END_OF_HEAD = b"\r\n\r\n"
_WITHOUT_RESULT = frozenset({"DeleteMessage", "ChangeMessageVisibility"})
_BATCH = "Batch"
_NO_BATCH = "The scripted fault is for batch actions of SQS over JSON (boto3 1.28 or newer)."
_HAS_RESULT = "The scripted fault is for deletes and changes of visibility of SQS over JSON (boto3 1.28 or newer)."


def leave_out(request: Request, handler: Handler, places: tuple[int, ...]) -> Pending | None:
    """Have the batch carried out without its entries at ``places``, and add these to the answer as failed."""
    content = _content(request)
    if "Entries" not in content:
        _explain(request, _NO_BATCH)
        return None
    entries = content["Entries"]
    failed = [_failed(entry["Id"]) for place, entry in enumerate(entries) if place in places]
    content["Entries"] = [entry for place, entry in enumerate(entries) if place not in places]
    if not content["Entries"]:
        _respond(request, {"Successful": [], "Failed": failed})
        return None
    answered = partial(_add, failed=failed)
    return Shadow(request, answered=answered, body=json.dumps(content).encode()).begin(handler)


def answer_without_doing(request: Request) -> None:
    """Answer as after success."""
    action = request.headers.get(b"x-amz-target", b"").decode().rpartition(".")[2]
    if action.removesuffix(_BATCH) not in _WITHOUT_RESULT:
        _explain(request, _HAS_RESULT)
    elif action.endswith(_BATCH):
        _respond(request, {"Successful": [{"Id": entry["Id"]} for entry in _content(request)["Entries"]], "Failed": []})
    else:
        _respond(request, {})


def _content(request: Request) -> dict[str, Any]:
    if b"x-amz-target" not in request.headers:
        return {}
    content: dict[str, Any] = json.loads(request.body)
    return content


def _failed(entry: str) -> dict[str, Any]:
    return {"Id": entry, "SenderFault": False, "Code": "InternalError", "Message": "The entry failed; try again."}


def _add(shadow: Shadow, failed: list[dict[str, Any]]) -> None:
    assert shadow.inner.reply is not None, "called when it is answered"
    head, _, body = shadow.inner.reply.partition(_END_OF_HEAD)
    if not head.startswith(b"HTTP/1.1 200"):
        shadow.deliver()
        return
    answer = json.loads(body)
    _respond(shadow.outer, answer | {"Failed": answer.get("Failed", []) + failed})


def _respond(request: Request, answer: dict[str, Any]) -> None:
    request.respond(200, _HEADERS, json.dumps(answer).encode())


def _explain(request: Request, text: str) -> None:
    request.respond(501, b"Content-Type: text/plain; charset=utf-8\r\n", text.encode())
