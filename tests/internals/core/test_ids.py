"""Message ids: UUIDs of version 4, all different."""

import uuid

from veilmq.core.messages import IdSource


def test_ids_are_version_4_uuids_and_never_repeat() -> None:
    """Ten thousand ids, across many pages of random bytes."""
    source = IdSource()
    ids = [source.next() for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    for each in ids:
        parsed = uuid.UUID(bytes=each)
        assert parsed.version == 4
        assert parsed.variant == uuid.RFC_4122


def test_two_sources_do_not_share_ids() -> None:
    """Sources draw from the system, not from a seed."""
    first, second = IdSource(), IdSource()
    assert {first.next() for _ in range(600)}.isdisjoint(second.next() for _ in range(600))


def test_all_other_bits_vary() -> None:
    """Each of the 122 random bits is seen as 0 and as 1; the six fixed ones are not."""
    source = IdSource()
    ones, zeros = 0, 0
    for _ in range(600):
        bits = int.from_bytes(source.next())
        ones |= bits
        zeros |= ~bits & (2**128 - 1)
    assert (ones & zeros).bit_count() == 122
