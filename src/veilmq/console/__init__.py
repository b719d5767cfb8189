"""The console: queues, leases and time in a browser, as pages made here, which ask as an account does."""
