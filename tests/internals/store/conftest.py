"""The stores of the conformance suite, for tests that know an engine as well."""

from tests.store.conftest import (  # noqa: F401
    host,
    kept,
    kept_store,
    model_url,
    pytest_collection_modifyitems,
    store,
)
