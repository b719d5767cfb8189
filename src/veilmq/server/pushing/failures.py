"""What can keep a server from pushing."""


class PushError(Exception):
    """Messages cannot be pushed as the settings say; the text says why and what to do."""
