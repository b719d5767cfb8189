-- Names that rest: a queue that was purged, or the name of one that was deleted, and since when.

CREATE TABLE pause (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    began_at_ms INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
