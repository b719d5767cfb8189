"""What is looked at before the first message: the queues, and how the server can forward."""

from collections.abc import Mapping

from veilmq.client.api import Forwards
from veilmq.client.messages import ClientError
from veilmq.client.sqs import QueueClient
from veilmq.client.transport import UNEXPECTED_REPLY
from veilmq.core.settings import SettingValue
from veilmq.forwarding.router import RoutesError

FIFO_SUFFIX = ".fifo"

_MISSING = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})
_NO_FORWARD = frozenset({UNEXPECTED_REPLY, "UnknownRoute"})
_SERVER_FAILED = 500


def check_targets(intake: str, targets: Mapping[str, int | None]) -> None:
    """Raise ``RoutesError`` where one of ``targets`` cannot take what is in ``intake``."""
    fifo = intake.endswith(FIFO_SUFFIX)
    for target in targets:
        if target == intake:
            raise RoutesError(f"The intake {intake} is one of the queues to forward to; name another one.")
        if target.endswith(FIFO_SUFFIX) != fifo:
            raise RoutesError(f"{intake} and {target} must both be FIFO queues, or both not.")


def ready_queues(client: QueueClient, targets: Mapping[str, int | None], *, create: bool) -> list[str]:
    """Make the queues that are missing, and return their names; without ``create`` raise ``RoutesError`` for them."""
    missing = [target for target in targets if not _exists(client, target)]
    if missing and not create:
        raise RoutesError(f"There is no queue {', '.join(missing)}; create it first, or have --create do it.")
    for target in missing:
        timeout_s = targets[target]
        settings: dict[str, SettingValue] = {} if timeout_s is None else {"visibility_timeout_s": timeout_s}
        client.create_queue(target, settings | ({"fifo": True} if target.endswith(FIFO_SUFFIX) else {}))
    return missing


def _exists(client: QueueClient, queue: str) -> bool:
    try:
        client.show(queue)
    except ClientError as error:
        if error.code in _MISSING:
            return False
        raise
    return True


def can_forward(forwards: Forwards) -> bool:
    """Tell whether the server knows forwards; raises ``ClientError`` where it does and says no, and ``Unreachable``."""
    try:
        forwards.forward([])
    except ClientError as error:
        if error.code in _NO_FORWARD and error.status < _SERVER_FAILED:
            return False
        raise
    return True
