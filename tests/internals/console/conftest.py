"""The browser, and a visitor without one."""

from tests.console.conftest import browser, page, pytest_collection_modifyitems, visit, visitor  # noqa: F401
