"""Consumers: handlers whose messages stay theirs for as long as they work on them."""
