"""The demonstration: a server, its producers and workers, and the pipeline, on one machine in a few minutes."""
