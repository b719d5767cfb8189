"""Benchmarks of `make bench`: veilmq, its ceiling and its peers under the same load in the same run."""
