"""What a policy forbids, or no policy allows: the same for all protocols, each of which says it in its own words."""


class Denial(Exception):
    """A caller may not do what he asks of a queue; ``str()`` says who, what, of which queue, and why not."""

    def __init__(self, *, caller: str, action: str, queue: str, explicit: bool) -> None:
        """``caller`` and ``queue`` are ARNs, ``action`` is one of SQS; ``explicit``: a policy forbids it."""
        reason = (
            "with an explicit deny in a resource-based policy"
            if explicit
            else f"because no resource-based policy allows the sqs:{action} action"
        )
        super().__init__(f"User: {caller} is not authorized to perform: sqs:{action} on resource: {queue} {reason}")
        self.caller = caller
        self.action = action
        self.queue = queue
        self.explicit = explicit
