"""Topics and their subscriptions from a client's side: SMQ's actions in XML, signed with its own signature."""

from base64 import b64encode
from collections.abc import Mapping
from email.utils import formatdate
from hmac import digest

from veilmq.client.messages import ClientError
from veilmq.client.transport import SigningKey, Transport, unexpected
from veilmq.core.limits import SMQ_LIST_RESULTS
from veilmq.wire.smq.errors import SUBSCRIPTION_NOT_EXIST, TOPIC_NOT_EXIST, SmqError
from veilmq.wire.smq.request import VERSION, VERSION_HEADER, Element, document, elements, read_xml, texts

Attributes = Mapping[str, str]
"""Texts, by SMQ's names (``docs/topics.md``)."""

_XML = "text/xml"
_MISSING = frozenset({TOPIC_NOT_EXIST.name, SUBSCRIPTION_NOT_EXIST.name})


class Topics:
    """The topics of the caller's account; a subscription is ``topic/subscriptions/name`` where a topic is ``topic``.

    Every call is idempotent. Failures are ``ClientError``, whose ``code`` is SMQ's, and ``Unreachable``.
    """

    def __init__(self, transport: Transport, *, key: SigningKey | None = None) -> None:
        """``transport`` has no key of its own: its signature is that of SQS, which SMQ does not know."""
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
        """Return the attributes of a topic or a subscription, ``None`` where there is none."""
        try:
            return texts(self._request("GET", f"/{name}"))
        except ClientError as error:
            if error.code in _MISSING:
                return None
            raise

    def create(self, name: str, attributes: Attributes) -> None:
        """Create a topic, or subscribe the ``Endpoint`` among ``attributes``; or find the same one."""
        self._request("PUT", f"/{name}", attributes)

    def set(self, name: str, attributes: Attributes) -> None:
        """Change the supplied attributes; of a subscription ``NotifyStrategy`` alone."""
        self._request("PUT", f"/{name}?metaoverride=true", attributes)

    def delete(self, name: str) -> None:
        """Delete a topic with its subscriptions, or a subscription; one that does not exist is no error."""
        self._request("DELETE", f"/{name}")

    def _request(
        self, method: str, place: str, content: Attributes | None = None, *, headers: Attributes | None = None
    ) -> Element:
        """Return the root of the reply, an empty element for a reply without a body."""
        target, root = f"/topics{place}", "Subscription" if "/subscriptions" in place else "Topic"
        whole = {VERSION_HEADER.decode(): VERSION.decode(), **(headers or {})}
        whole |= {"Content-Type": _XML, "Date": formatdate(usegmt=True)}
        if (key := self._key) is not None:
            lines = "".join(f"{name}:{whole[name]}\n" for name in sorted(whole) if name.startswith("x-mns-"))
            text = f"{method}\n\n{_XML}\n{whole['Date']}\n{lines}{target}"
            signature = b64encode(digest(key.secret.encode(), text.encode(), "sha1")).decode()
            whole |= {"Authorization": f"MNS {key.id}:{signature}", "security-token": key.session_token or ""}
        body = b"" if content is None else document(root, elements(content))
        reply = self._transport.request(method, target, headers=whole, body=body)
        try:
            found = read_xml(reply.data) if reply.data else Element("", "", [])
        except SmqError as error:
            raise unexpected(reply) from error
        if reply.status >= 300:
            told = texts(found)
            raise ClientError(told.get("Code", str(reply.status)), told.get("Message", ""), reply.status)
        return found
