"""A queue's settings: defaults, changes, and the comparison that creating a queue again needs."""

import msgspec
import pytest

from veilmq.core import limits
from veilmq.core.settings import QueueSettings


def test_defaults() -> None:
    """What a queue has when nobody says anything: 30 s, no delay, 4 days, no wait, 1 MiB."""
    assert QueueSettings() == QueueSettings(
        visibility_timeout_s=30, delay_s=0, retention_s=345_600, receive_wait_s=0, message_bytes_max=1_048_576
    )


def test_defaults_lie_within_the_limits() -> None:
    """Each default is one that the limits allow."""
    settings = QueueSettings()
    assert limits.VISIBILITY_TIMEOUT_S.holds(settings.visibility_timeout_s)
    assert limits.DELAY_S.holds(settings.delay_s)
    assert limits.RETENTION_S.holds(settings.retention_s)
    assert limits.RECEIVE_WAIT_S.holds(settings.receive_wait_s)
    assert limits.MESSAGE_BYTES.holds(settings.message_bytes_max)


def test_changed_leaves_the_rest_and_the_original_alone() -> None:
    """Only what is named changes, and in the copy only."""
    before = QueueSettings(delay_s=5)
    after = before.changed({"visibility_timeout_s": 60})
    assert after == QueueSettings(visibility_timeout_s=60, delay_s=5)
    assert before == QueueSettings(delay_s=5)


def test_first_difference() -> None:
    """Only supplied fields count, and the first one that differs is named."""
    settings = QueueSettings(delay_s=5)
    assert settings.first_difference({}) is None
    assert settings.first_difference({"delay_s": 5, "retention_s": 345_600}) is None
    assert settings.first_difference({"retention_s": 345_600, "delay_s": 6, "receive_wait_s": 1}) == "delay_s"


def test_settings_survive_the_way_to_the_store_and_back() -> None:
    """As JSON, also when an older version has stored fewer fields."""
    settings = QueueSettings(visibility_timeout_s=0, delay_s=900)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=QueueSettings) == settings
    assert msgspec.json.decode(b'{"delay_s":3}', type=QueueSettings) == QueueSettings(delay_s=3)


def test_settings_cannot_be_changed_in_place() -> None:
    """They are a value."""
    with pytest.raises(AttributeError):
        QueueSettings().delay_s = 5  # type: ignore[misc]
