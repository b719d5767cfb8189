"""The web console: queues, messages and leases in a browser; pages send requests with the caller's permissions."""
