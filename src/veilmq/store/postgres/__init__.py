"""The PostgreSQL dialect of the store."""

import veilmq.engines.postgres  # noqa: F401 - the rest of it, which imports modules of this package
