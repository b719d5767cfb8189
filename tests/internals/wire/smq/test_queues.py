"""Queue attributes over SMQ."""

from msgspec.structs import replace

from tests.internals.wire.smq.asking import ACCOUNT, CONTEXT, request
from veilmq.core.commands import QueueCounts, QueueView
from veilmq.core.settings import QueueSettings, SettingValue
from veilmq.wire.smq.queues import ATTRIBUTES, DEFAULTS, described, read_settings
from veilmq.wire.smq.request import body_of

SETTINGS: dict[str, tuple[str, SettingValue]] = {
    "DelaySeconds": ("604800", 604_800),
    "MaximumMessageSize": ("1024", 1_024),
    "MessageRetentionPeriod": ("60", 60),
    "VisibilityTimeout": ("1", 1),
    "PollingWaitSeconds": ("30", 30),
    "LoggingEnabled": ("True", True),
    "QueueType": ("FIFO", True),
    "DeadLetterTargetQueue": ("dead", f"{ACCOUNT}/dead"),
    "MaxReceiveCount": ("3", 3),
    "MaxReceivesPerSecond": ("0", 0),
}
COUNTS = QueueCounts(visible=1, in_flight=2, delayed=3, oldest_sent_at_ms=None)


def read(inner: str) -> dict[str, SettingValue]:
    """Return what the children of a queue set."""
    return read_settings(body_of(request("PUT", "/queues/q", f"<Queue>{inner}</Queue>"), "Queue"), CONTEXT)


def test_each_attribute_sets_one_field() -> None:
    """Elements that nobody knows set none."""
    assert set(SETTINGS) == set(ATTRIBUTES)
    fields = [read(f"<{name}>{text}</{name}><Unknown/>") for name, (text, _) in SETTINGS.items()]
    assert [list(each.values()) for each in fields] == [[value] for _, value in SETTINGS.values()]
    assert all(hasattr(QueueSettings(), field) for each in fields for field in each)


def test_an_empty_dead_letter_queue_ends_the_policy() -> None:
    """Both parts of it."""
    assert read("<DeadLetterTargetQueue/>") == {"dead_letter_queue": "", "receives_max": 0}


def test_a_queue_is_shown_with_the_elements_of_smq_alone() -> None:
    """In the order of the reference; what it has beside is not told."""
    settings = replace(
        QueueSettings().changed(DEFAULTS), dead_letter_queue="a/dead", receives_max=1, receives_per_s_max=5
    )
    view = QueueView(queue="a/q", settings=settings, created_at_ms=1_999, modified_at_ms=2_000, counts=COUNTS)
    assert described(view).replace("\n", "") == (
        "<QueueName>q</QueueName><CreateTime>1</CreateTime><LastModifyTime>2</LastModifyTime>"
        "<DelaySeconds>0</DelaySeconds><MaximumMessageSize>65536</MaximumMessageSize>"
        "<MessageRetentionPeriod>345600</MessageRetentionPeriod><VisibilityTimeout>30</VisibilityTimeout>"
        "<PollingWaitSeconds>0</PollingWaitSeconds><LoggingEnabled>False</LoggingEnabled>"
        "<ActiveMessages>1</ActiveMessages><InactiveMessages>2</InactiveMessages><DelayMessages>3</DelayMessages>"
    )
