"""The store: queues and messages in a database, with one logical model for every database."""
