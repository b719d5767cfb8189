"""How a job ends badly: with one sentence that says what to do."""


class PipelineFailed(Exception):
    """The job was right and could not be done."""
