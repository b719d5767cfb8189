-- The event log (core/events.py).

-- What the end of a receipt has to know of its receive, packed (engines/embedded/held.py); 0 where nothing is logged.
ALTER TABLE lease ADD COLUMN log INTEGER NOT NULL DEFAULT 0;

-- The events of one batch of commands, encoded; the number is that of its first event. Rows go when they are exported.
CREATE TABLE event_batch (
    number INTEGER PRIMARY KEY,
    events INTEGER NOT NULL,
    encoded BLOB NOT NULL
);

-- Receipts that ended without a deletion, for a while, in the order in which that was seen: a late delete finds here what
-- it corrects, and that it is the first one. One row for each such receipt, with its event.
CREATE TABLE expired_receipt (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    position INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    seen_at_ms INTEGER NOT NULL,
    event BLOB NOT NULL
);

CREATE INDEX expired_receipt_position ON expired_receipt (position, generation);

-- Lanes that were purged while their queue was logged: its name and when, for the receipts that end with them.
CREATE TABLE logged_lane (
    lane INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    ended_at_ms INTEGER NOT NULL
);
