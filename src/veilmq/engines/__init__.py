"""The stores: the same commands, made atomic and durable on an embedded database or on a shared one."""
