-- Topics and their subscriptions (core/topics.py).

CREATE TABLE topic (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    settings BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL,
    modified_at_ms INTEGER NOT NULL
);

-- The content is the subscription itself (JSON). One that is pushed has a queue of its own, by its incarnation.
CREATE TABLE subscription (
    topic INTEGER NOT NULL,
    name TEXT NOT NULL,
    content BLOB NOT NULL,
    push_queue INTEGER,
    created_at_ms INTEGER NOT NULL,
    modified_at_ms INTEGER NOT NULL,
    PRIMARY KEY (topic, name)
) WITHOUT ROWID;
