-- Ordered groups: FIFO queues.

-- The group of a message that has a lease, so that nobody has to read the message for it.
ALTER TABLE lease ADD COLUMN group_key INTEGER;

-- What the sequence number of the lane's first message is.
ALTER TABLE lane ADD COLUMN sequence_base INTEGER NOT NULL DEFAULT 0;

-- One row for each group that has messages: when its next one is visible, where those begin that were never given, and
-- the first of all.
CREATE TABLE turn (
    lane INTEGER NOT NULL,
    group_key INTEGER NOT NULL,
    visible_at_ms INTEGER NOT NULL,
    next_position INTEGER NOT NULL,
    head_position INTEGER NOT NULL,
    PRIMARY KEY (lane, group_key)
) WITHOUT ROWID;

CREATE INDEX turn_due ON turn (lane, visible_at_ms, head_position);

-- What was sent lately: a message with the same key is a duplicate.
CREATE TABLE deduplication (
    key BLOB PRIMARY KEY NOT NULL,
    id BLOB NOT NULL,
    sequence INTEGER NOT NULL,
    accepted_at_ms INTEGER NOT NULL
) WITHOUT ROWID;

-- What a receive that may be repeated gave.
CREATE TABLE attempt (
    key BLOB PRIMARY KEY NOT NULL,
    taken BLOB NOT NULL,
    attempted_at_ms INTEGER NOT NULL
) WITHOUT ROWID;
