"""How a command ends badly: with one sentence that says what to do."""


class CommandFailed(Exception):
    """The command was right and could not be done; exit code 1."""


class UsageError(Exception):
    """The command was asked wrongly; exit code 2."""
