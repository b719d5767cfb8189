"""Pushing messages to URLs: who may be asked, how he is asked, and when again.

A subscription that is pushed has a queue of its own in the engine, and is served like a consumer serves one: its
messages are received with a lease, deleted when the receiver has accepted them, and hidden until the next try when he
has not. So nothing that waits to be pushed is lost with the process.
"""
