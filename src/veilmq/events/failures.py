"""What can go wrong with an export, for people."""


class EventsError(Exception):
    """Events cannot be exported there; the text says why and what to do."""
