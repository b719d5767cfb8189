"""What the commands on claims have in common."""

from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.options import read_by
from veilmq.core.limits import Range
from veilmq.server.settings import whole_number

_NUMBER = whole_number(Range(minimum=0, maximum=2**53 - 1, default=0))

Source = Annotated[str, Parameter(help="Name of the source, as `veilmq claims list` tells it.")]
Number = Annotated[
    int, Parameter(converter=read_by(_NUMBER.read, allowed=_NUMBER.allowed), help="Number of the claim.")
]
