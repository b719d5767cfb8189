"""The client of topics and subscriptions: the actions of SMQ, with its signature."""

from base64 import b64encode
from collections.abc import Mapping
from email.utils import formatdate
from hmac import digest

from veilmq.client.messages import ClientError
from veilmq.client.transport import SigningKey, Transport, unexpected_reply
from veilmq.core.limits import SMQ_LIST_RESULTS
from veilmq.wire.smq.errors import SUBSCRIPTION_NOT_EXIST, TOPIC_NOT_EXIST, SmqError
from veilmq.wire.smq.request import VERSION, VERSION_HEADER, Element, document, elements, read_xml, texts

Attributes = Mapping[str, str]
"""Texts by the names of SMQ (``docs/topics.md``)."""

_XML = "text/xml"
_MISSING = frozenset({TOPIC_NOT_EXIST.name, SUBSCRIPTION_NOT_EXIST.name})


class Topics:
    """The topics of the caller's account; the name of a subscription is ``topic/subscriptions/name``.

    Every call is idempotent. Errors are ``ClientError``, with a code of SMQ, and ``Unreachable``.
    """

    def __init__(self, transport: Transport, *, key: SigningKey | None = None) -> None:
        """``transport`` must not have a key: it would sign for SQS."""
        self._transport = transport
        self._key = key

    def names(self, topic: str = "") -> list[str]:
        """Return the names of all topics, or of the subscriptions of ``topic``, in order."""
        names, marker = list[str](), ""
        while True:
            page = {"x-mns-ret-number": str(SMQ_LIST_RESULTS.maximum)} | ({"x-mns-marker": marker} if marker else {})
            found = self._request("GET", f"/{topic}/subscriptions" if topic else "", headers=page)
            names += [each.children[0].text.rpartition("/")[2] for each in found.children if each.children]
            marker = texts(found).get("NextMarker", "")
            if not marker:
                return names

    def show(self, name: str) -> dict[str, str] | None:
        """Return the attributes of a topic or a subscription, ``None`` if it does not exist."""
        try:
            return texts(self._request("GET", f"/{name}"))
        except ClientError as error:
            if error.code in _MISSING:
                return None
            raise

    def create(self, name: str, attributes: Attributes) -> None:
        """Create a topic, or a subscription of the ``Endpoint`` in ``attributes``; an equal one may exist."""
        self._request("PUT", f"/{name}", attributes)

    def set(self, name: str, attributes: Attributes) -> None:
        """Change the given attributes; a subscription can change only ``NotifyStrategy``."""
        self._request("PUT", f"/{name}?metaoverride=true", attributes)

    def delete(self, name: str) -> None:
        """Delete a topic and its subscriptions, or a subscription; a missing one is no error."""
        self._request("DELETE", f"/{name}")

    def _request(
        self, method: str, place: str, content: Attributes | None = None, *, headers: Attributes | None = None
    ) -> Element:
        """Return the root of the reply, an empty element if there is no body."""
        target, root = f"/topics{place}", "Subscription" if "/subscriptions" in place else "Topic"
        all_headers = {VERSION_HEADER.decode(): VERSION.decode(), **(headers or {})}
        all_headers |= {"Content-Type": _XML, "Date": formatdate(usegmt=True)}
        if (key := self._key) is not None:
            lines = "".join(
                f"{name}:{all_headers[name]}\n" for name in sorted(all_headers) if name.startswith("x-mns-")
            )
            text = f"{method}\n\n{_XML}\n{all_headers['Date']}\n{lines}{target}"
            signature = b64encode(digest(key.secret.encode(), text.encode(), "sha1")).decode()
            all_headers |= {"Authorization": f"MNS {key.id}:{signature}", "security-token": key.session_token or ""}
        body = b"" if content is None else document(root, elements(content))
        reply = self._transport.request(method, target, headers=all_headers, body=body)
        try:
            found = read_xml(reply.data) if reply.data else Element("", "", [])
        except SmqError as error:
            raise unexpected_reply(reply) from error
        if reply.status >= 300:
            members = texts(found)
            raise ClientError(members.get("Code", str(reply.status)), members.get("Message", ""), reply.status)
        return found
