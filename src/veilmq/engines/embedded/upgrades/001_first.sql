-- The first format. Times are milliseconds since the epoch. A position is lane << 41 | delayed << 40 | sequence
-- (docs/decisions/0002-positions.md).

CREATE TABLE meta (
    name TEXT PRIMARY KEY NOT NULL,
    value BLOB NOT NULL
) WITHOUT ROWID;

-- A queue's incarnation: the number is never given twice.
CREATE TABLE queue (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    settings BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL,
    modified_at_ms INTEGER NOT NULL
);

-- The messages of one queue and one priority. Positions below a floor are past their retention, and all of a lane
-- without a queue (purged): the janitor removes their rows.
CREATE TABLE lane (
    number INTEGER PRIMARY KEY,
    queue INTEGER,
    priority INTEGER NOT NULL,
    direct_floor INTEGER NOT NULL,
    direct_next INTEGER NOT NULL,
    delayed_floor INTEGER NOT NULL,
    delayed_next INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    in_flight INTEGER NOT NULL,
    delayed INTEGER NOT NULL,
    counted_at_ms INTEGER NOT NULL
);

-- What was sent; never changed.
CREATE TABLE message (
    position INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    sent_at_ms INTEGER NOT NULL,
    body TEXT NOT NULL,
    properties BLOB NOT NULL
);

-- What changes: one narrow row for a message that is, or ever was, hidden.
CREATE TABLE lease (
    position INTEGER PRIMARY KEY,
    lane INTEGER NOT NULL,
    visible_at_ms INTEGER NOT NULL,
    receive_count INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    received_at_ms INTEGER NOT NULL,
    first_received_at_ms INTEGER NOT NULL
);

-- The order in which hidden messages become visible; the last column lets it count those that became due by itself.
CREATE INDEX lease_due ON lease (lane, visible_at_ms, position, receive_count);
