"""The soak, for seconds instead of hours: it restarts, keeps the books and shows ten tenths; what drifts fails."""

from pathlib import Path

import pytest

from tests.proofs.soak import RESTARTED, TENTHS, Soak, Soaked, Tenth, failures

STEADY = Tenth(memory_bytes=50e6, files=40, way_p50_ms=2, way_p99_ms=10, ways=100, restarts=0)


@pytest.mark.slow
def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    seen: list[int] = []
    soak = Soak(tmp_path, seconds=10, seed=1, filled=100, warm_up_s=1.5)
    soaked = soak.run(lambda number, tenth: seen.append(number))
    assert soaked.violations == []
    assert seen == [*range(1, TENTHS + 1)]
    restarts = [tenth.restarts for tenth in soaked.tenths]
    assert sum(restarts[at - 1] for at in RESTARTED) == sum(restarts) >= 2  # both ways
    assert soaked.tenths[0].ways > 0 < soaked.tenths[-1].ways
    assert all(tenth.memory_bytes > 1e6 and tenth.files > 10 for tenth in soaked.tenths)
    assert soaked.sent > soaked.deleted > 0 < soaked.dead
    assert all(load.ledger.told()[0] > 0 for load in soak.loads)  # each queue was in use


@pytest.mark.parametrize(
    ("last", "violations", "said"),
    [
        pytest.param(STEADY, [], [], id="steady"),
        pytest.param(STEADY._replace(memory_bytes=52.4e6, way_p99_ms=10.9, files=42), [], [], id="within"),
        pytest.param(STEADY._replace(memory_bytes=10e6, way_p99_ms=1, files=4), [], [], id="less"),
        pytest.param(STEADY._replace(memory_bytes=53e6), [], ["memory grew by 6.0%"], id="memory"),
        pytest.param(STEADY._replace(way_p99_ms=11.2), [], ["99th percentile of the ways grew by 12.0%"], id="latency"),
        pytest.param(STEADY._replace(files=43), [], ["3 more descriptors"], id="descriptors"),
        pytest.param(STEADY, ["a is lost", "b is lost"], ["2 violations, the first: a is lost"], id="lost"),
    ],
)
def test_what_grows_fails(last: Tenth, violations: list[str], said: list[str]) -> None:
    soaked = Soaked([STEADY, *[STEADY._replace(memory_bytes=9e9)] * 8, last], violations, 1, 1, 1, 1)
    found = failures(soaked)
    assert len(found) == len(said)
    assert all(words in each for words, each in zip(said, found, strict=True))


def test_a_start_without_a_measured_way_fails() -> None:
    assert "grew" in failures(Soaked([STEADY._replace(way_p99_ms=0), STEADY], [], 1, 1, 1, 1))[0]
