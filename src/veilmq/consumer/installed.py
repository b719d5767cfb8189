"""Which optional libraries there are, without importing them."""

import importlib.util


def is_installed(module: str) -> bool:
    """Tell whether ``module`` could be imported; of a module inside a package, the package is imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package is not there
        return False
