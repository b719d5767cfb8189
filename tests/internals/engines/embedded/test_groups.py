"""The number of a group."""

from veilmq.engines.embedded.groups import key_of


def test_it_fits_a_column_and_does_not_change() -> None:
    """Stores keep it: a test says if a new version would compute another."""
    assert key_of("orders") == key_of("orders") != key_of("Orders")
    assert all(0 <= key_of(str(number)) < 1 << 63 for number in range(1_000))
    assert key_of("a") == 2_340_832_890_917_691_671
