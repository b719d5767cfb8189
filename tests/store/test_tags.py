"""Tags of queues: put, removed, bounded, kept; they change nothing else."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.store.host import QUEUE, Host
from veilmq.core import commands
from veilmq.core.errors import TooManyTags

FIFTY = {f"key{number}": "" for number in range(50)}


def tags(host: Host) -> dict[str, str]:
    """Return the queue's tags."""
    found: dict[str, str] = host.do(commands.ShowQueue(queue=QUEUE)).settings.tags
    return found


def tag(host: Host, *removed: str, **put: str) -> None:
    """Remove some, then put others."""
    host.do(commands.TagQueue(queue=QUEUE, tags=put, removed=removed))


def create(host: Host, **given: Any) -> Any:
    """Create the queue with tags."""
    return host.do(commands.CreateQueue(queue=QUEUE, **given))


def test_tags_are_put_and_removed(host: Host) -> None:
    """A key is put over what it was; removing what is not there is nothing; both at once removes first."""
    host.create()
    assert tags(host) == {}
    tag(host, team="red", stage="test")
    tag(host, "nothing", team="blue")
    assert tags(host) == {"team": "blue", "stage": "test"}
    tag(host, "team", "stage", team="green")
    assert tags(host) == {"team": "green"}


def test_a_queue_is_created_with_tags(host: Host) -> None:
    """They do not tell an existing queue apart, and a second creation does not change them."""
    made = create(host, tags={"team": "red"})
    assert (made.settings.tags, made.is_new) == ({"team": "red"}, True)
    created = replace(made, is_new=False)
    assert create(host, tags={"team": "blue"}) == created
    assert host.create() == created


def test_fifty_tags_are_the_most(host: Host) -> None:
    """One more is refused, whole, also at the creation; a key put again is no more."""
    with pytest.raises(TooManyTags) as refusal:
        create(host, tags={**FIFTY, "more": ""})
    assert refusal.value.tags_max == 50
    create(host, tags=FIFTY)
    tag(host, key7="seven")
    with pytest.raises(TooManyTags):
        tag(host, key7="eight", more="")
    assert tags(host) == {**FIFTY, "key7": "seven"}
    tag(host, "key7", more="")
    assert len(tags(host)) == 50


def test_tags_are_no_settings(host: Host) -> None:
    """The time of the last change stays, and so do messages, leases and settings."""
    created = create(host, settings={"visibility_timeout_s": 9})
    host.send("a", "b")
    host.receive()
    host.advance(5_000)
    tag(host, team="red")
    view = host.do(commands.ShowQueue(queue=QUEUE))
    assert view.modified_at_ms == created.modified_at_ms
    assert host.counts() == (1, 1, 0)
    host.do(commands.SetQueue(queue=QUEUE, settings={"delay_s": 1}))
    assert tags(host) == {"team": "red"}


@pytest.mark.parametrize("again", ["reopen", "crash"])
def test_tags_survive(kept: Host, again: str) -> None:
    """As everything that was acknowledged does."""
    kept.create()
    tag(kept, team="red")
    getattr(kept, again)()
    assert tags(kept) == {"team": "red"}
