"""What the commands on claims have in common."""

from typing import Annotated

from cyclopts import Parameter

Source = Annotated[str, Parameter(help="Name of the source, as `veilmq claims list` tells it.")]
Number = Annotated[int, Parameter(help="Number of the claim.")]
