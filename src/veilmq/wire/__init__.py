"""The protocols, one package each: bytes to commands and results to bytes, without I/O.

The names of Amazon SQS and Alibaba Cloud SMQ are used only here, not in ``core`` or the stores.
"""
