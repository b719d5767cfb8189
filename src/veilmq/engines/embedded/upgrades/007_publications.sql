-- Publications (core/publications.py).

-- Who publishes to a queue (by its incarnation), and how far that is: the last published batch guards against a second
-- publication of it.
CREATE TABLE writer (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL,
    name TEXT NOT NULL,
    batch INTEGER,
    messages INTEGER NOT NULL DEFAULT 0,
    duplicates INTEGER NOT NULL DEFAULT 0,
    seen_at_ms INTEGER NOT NULL,
    UNIQUE (queue, name)
);

CREATE INDEX writer_seen ON writer (seen_at_ms);

-- What one attempt has staged for a batch, until a publication decides on it.
CREATE TABLE stage (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    writer INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    attempt TEXT NOT NULL,
    messages INTEGER NOT NULL,
    publication INTEGER
);

CREATE UNIQUE INDEX stage_open ON stage (writer, batch, attempt) WHERE publication IS NULL;
CREATE INDEX stage_decided ON stage (publication) WHERE publication IS NOT NULL;

-- The messages themselves, encoded: so many as one slice moves into the queue. The narrow index spares looks at them.
CREATE TABLE piece (
    number INTEGER PRIMARY KEY,
    stage INTEGER NOT NULL,
    part INTEGER NOT NULL,
    place INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    content BLOB NOT NULL
);

CREATE UNIQUE INDEX piece_order ON piece (stage, part, place, messages);

-- What was decided and is not done yet: the stages named, in their order, enter the queue; then all stages of the
-- publication are dropped. One that names none only drops. With a rate, the next slice is due at an instant.
CREATE TABLE publication (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    writer INTEGER NOT NULL,
    queue INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    stages BLOB NOT NULL,
    messages_per_s_max INTEGER,
    next_at_ms INTEGER NOT NULL
);
