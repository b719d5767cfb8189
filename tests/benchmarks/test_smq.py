"""The workloads that are measured over SMQ."""

from benchmarks.smq import PAIRS
from benchmarks.wrk import SCRIPTS


def test_each_workload_of_one_protocol_has_its_counterpart_in_the_other() -> None:
    for sqs, smq in PAIRS:
        assert smq.figure == f"SMQ, {sqs.figure}"
        assert smq.script == f"smq_{sqs.script}"
        assert (SCRIPTS / f"{smq.script}.lua").exists()
