"""What `make bench` runs: veilmq, its ceiling and its peers under the same load in the same run."""
