"""The stores of the conformance suite, for tests that know an engine as well."""

from tests.store.conftest import host, kept, kept_store, model_url, pytest_collection_modifyitems, store  # noqa: F401
