"""The variables that Kubernetes sets for Services, which look like ours when a Service has our name.

For each Service of the namespace, every container is given seven variables that begin with the Service's name (those
of Docker's links among them, see Kubernetes' documentation of Services, "Environment variables"). A Service called
``veilmq``, or ``veilmq-admin``, makes that ``VEILMQ_SERVICE_HOST`` and so on. They are no settings and are passed over,
but for those that have the name of a setting: ``VEILMQ_PORT`` cannot be both.
"""

import re

_SERVICE = re.compile(
    r"VEILMQ_(?:[A-Z0-9_]+_)?(?:"
    r"SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|"
    r"PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_PORT = re.compile(r"VEILMQ_(?:[A-Z0-9_]+_)?PORT")
_LINK = re.compile(r"(?:tcp|udp|sctp)://[^/\s]+:[0-9]+")

REMEDY = (
    "this is what Kubernetes sets for a Service of that name; "
    "put enableServiceLinks: false into the pod's spec, or rename the Service"
)


def is_link(value: str) -> bool:
    """Tell whether ``value`` is one that Kubernetes gives to ``<SERVICE>_PORT``, for example tcp://10.0.0.1:9324."""
    return _LINK.fullmatch(value) is not None


def is_of_service(name: str, value: str) -> bool:
    """Tell whether a variable with our prefix describes a Service."""
    return _SERVICE.fullmatch(name) is not None or (_PORT.fullmatch(name) is not None and is_link(value))
