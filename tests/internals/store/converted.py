"""Stores of the engine before that become stores of this format."""

from tests.store.host import Host, SqliteHost
from veilmq.store.sqlite import conversion


def converted(host: Host) -> SqliteHost:
    """Close `host`, convert its folder, and go on at the same instant; what is there is sound."""
    host.close()
    assert host.folder is not None
    conversion.convert(host.folder)
    there = SqliteHost(host.folder, options=host._options, clock=host.clock)
    there._copies = host._copies
    there.check()
    return there


def killed(host: Host) -> SqliteHost:
    """Do the same with what `host` has on the disk when it is killed, log and all."""
    host.crash()
    return converted(host)
