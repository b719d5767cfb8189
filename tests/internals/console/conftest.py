"""The browser, and a visitor without one."""

from tests.console.conftest import browser, page, visit, visitor  # noqa: F401
