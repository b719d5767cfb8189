"""The protocols: bytes to commands, results to bytes.

Wire does no I/O and never meets an engine. Each protocol has its own package; the words of Amazon SQS and of Alibaba
Cloud SMQ live here and nowhere deeper.
"""
