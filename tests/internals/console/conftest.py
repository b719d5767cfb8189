"""The browser, and a visitor without one."""

from tests.console.conftest import blank, browser, empty, page, tab, visit, visitor  # noqa: F401
