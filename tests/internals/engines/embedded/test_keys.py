"""The secret keys of a store."""

from pathlib import Path

from tests.store.host import Host


def test_a_key_lives_as_long_as_the_data(tmp_path: Path) -> None:
    """The next start has the same one, another store another one."""
    keys = []
    for folder in ("one", "one", "other"):
        host = Host(tmp_path / folder)
        keys.append(host.engine.token_key)
        host.close()
    assert keys[0] == keys[1] != keys[2]
    assert [len(key) for key in keys] == [32, 32, 32]
