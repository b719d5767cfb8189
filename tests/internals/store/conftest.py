"""The fixtures of the conformance suite, for tests that also use internals of a store."""

from tests.store.conftest import durable, durable_store, host, model_url, pytest_collection_modifyitems, store  # noqa: F401
