-- The tables of the SQLite dialect besides the shared ones (store/schema.sql); store/model.md describes each column.
--
-- A message keeps its sequence number (seq) while it is in a queue: milliseconds of store time << 20 | counter. So seq orders
-- messages by sending, seq >> 20 is the sending time, and retention is a comparison of seq.

CREATE TABLE setting (name TEXT PRIMARY KEY, value ANY NOT NULL) WITHOUT ROWID;

-- One row. A batch that writes totals of a partition, as all hot commands do, does not need to write this page.
CREATE TABLE progress (
    id INTEGER PRIMARY KEY CHECK (id = 1), last_instant_ms INTEGER NOT NULL, last_seq INTEGER NOT NULL, mark BLOB
);
INSERT INTO progress VALUES (1, 0, 0, NULL);

CREATE TABLE queue (
    queue_id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, settings BLOB NOT NULL,
    created_at INTEGER NOT NULL, modified_at INTEGER NOT NULL, qp INTEGER NOT NULL, origin INTEGER NOT NULL,
    dead_letter_queue TEXT NOT NULL AS (CAST(settings AS TEXT) ->> 'dead_letter_queue') VIRTUAL
);
CREATE INDEX queue_origin ON queue (origin);
CREATE INDEX queue_source ON queue (dead_letter_queue, name) WHERE dead_letter_queue <> '';

CREATE TABLE part (
    qp INTEGER PRIMARY KEY AUTOINCREMENT, queue_id INTEGER NOT NULL, retired INTEGER NOT NULL DEFAULT 0,
    retired_at INTEGER, messages INTEGER NOT NULL DEFAULT 0, in_flight INTEGER NOT NULL DEFAULT 0,
    delayed INTEGER NOT NULL DEFAULT 0, counted_at INTEGER NOT NULL DEFAULT 0, last_seq INTEGER NOT NULL DEFAULT 0,
    floor_seq INTEGER NOT NULL DEFAULT 0, log_queue TEXT, log_origin INTEGER
);
CREATE INDEX part_retired ON part (qp) WHERE retired;

CREATE TABLE message (
    seq INTEGER PRIMARY KEY, grp INTEGER, id BLOB NOT NULL, properties BLOB NOT NULL, body TEXT NOT NULL, source TEXT,
    receives_before INTEGER, first_received_at_ms INTEGER, moved_at_ms INTEGER
);

CREATE TABLE ready (
    partition INTEGER NOT NULL, lane INTEGER NOT NULL, last_seq INTEGER NOT NULL, first_seq INTEGER NOT NULL,
    PRIMARY KEY (partition, lane, last_seq)
) WITHOUT ROWID;

-- Receipts find messages by the key, receives by the index, which also has whether a hidden message was received.
CREATE TABLE visibility (
    partition INTEGER NOT NULL, seq INTEGER NOT NULL, lane INTEGER NOT NULL, visible_at INTEGER NOT NULL, grp INTEGER,
    receive_count INTEGER NOT NULL, generation INTEGER NOT NULL, epoch INTEGER NOT NULL, received_at INTEGER,
    first_received_at INTEGER, log INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (partition, seq)
) WITHOUT ROWID;
CREATE INDEX visible ON visibility (partition, lane, visible_at, seq, receive_count);
CREATE INDEX visible_of_group ON visibility (partition, lane, grp, visible_at, seq) WHERE grp IS NOT NULL;

CREATE TABLE fair_group (
    partition INTEGER NOT NULL, lane INTEGER NOT NULL, grp INTEGER NOT NULL, head_at INTEGER NOT NULL,
    head_seq INTEGER NOT NULL, PRIMARY KEY (partition, lane, grp)
) WITHOUT ROWID;
CREATE INDEX fair_head ON fair_group (partition, lane, head_at, head_seq);

-- A group's cursor precedes its messages, with the seq 0 and the last six columns: they change together, on one page.
CREATE TABLE ordered (
    partition INTEGER NOT NULL, grp INTEGER NOT NULL, seq INTEGER NOT NULL, visible_at INTEGER,
    receive_count INTEGER NOT NULL DEFAULT 0, generation INTEGER NOT NULL DEFAULT 0, epoch INTEGER NOT NULL DEFAULT 0,
    received_at INTEGER, first_received_at INTEGER, log INTEGER NOT NULL DEFAULT 0, apart INTEGER NOT NULL DEFAULT 0,
    fixed_at INTEGER, head_seq INTEGER, floating_seq INTEGER, received_to INTEGER, own_to INTEGER, in_flight INTEGER,
    PRIMARY KEY (partition, grp, seq)
) WITHOUT ROWID;
CREATE INDEX ordered_apart ON ordered (partition, visible_at, receive_count) WHERE apart = 1;
CREATE INDEX group_due ON ordered (partition, fixed_at, head_seq, in_flight) WHERE seq = 0;
CREATE INDEX group_also_floating ON ordered (partition, floating_seq)
WHERE seq = 0 AND fixed_at IS NOT NULL AND floating_seq IS NOT NULL;

CREATE TABLE ordered_run (
    partition INTEGER NOT NULL, last_seq INTEGER NOT NULL, first_seq INTEGER NOT NULL, messages INTEGER NOT NULL,
    PRIMARY KEY (partition, last_seq)
) WITHOUT ROWID;

-- The number of a group is the seq of its first message, so groups that are active at the same time are close together.
CREATE TABLE message_group (
    partition INTEGER NOT NULL, hash INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (partition, hash)
) WITHOUT ROWID;
CREATE INDEX message_group_number ON message_group (partition, number);

CREATE TABLE accepted (number INTEGER PRIMARY KEY, accepted_at_ms INTEGER NOT NULL, entries BLOB NOT NULL);

CREATE TABLE attempt (key BLOB PRIMARY KEY, taken BLOB NOT NULL, attempted_at_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX attempt_age ON attempt (attempted_at_ms);

-- The last row of event_batch has the last assigned number; stored here, it would cost each batch another page.
CREATE TABLE event_state (
    one INTEGER PRIMARY KEY CHECK (one = 1), planned INTEGER NOT NULL, exported INTEGER NOT NULL,
    dropped INTEGER NOT NULL
);
INSERT INTO event_state VALUES (1, 0, 0, 0);

CREATE TABLE expired_receipt (
    number INTEGER PRIMARY KEY, seq INTEGER NOT NULL, generation INTEGER NOT NULL, seen_at INTEGER NOT NULL,
    event BLOB NOT NULL
);
CREATE INDEX expired_receipt_seq ON expired_receipt (seq, generation);

CREATE TABLE publication (
    number INTEGER PRIMARY KEY AUTOINCREMENT, qp INTEGER NOT NULL, writer_id INTEGER NOT NULL, batch INTEGER NOT NULL,
    stages TEXT NOT NULL, messages_per_s_max INTEGER, next_at INTEGER NOT NULL
);
CREATE INDEX publication_of_writer ON publication (writer_id, number);

CREATE TABLE claim (
    claim_id INTEGER PRIMARY KEY, qp INTEGER NOT NULL, part INTEGER NOT NULL, source TEXT, number INTEGER NOT NULL,
    state TEXT NOT NULL, messages INTEGER NOT NULL DEFAULT 0, shards INTEGER NOT NULL DEFAULT 0,
    filled INTEGER NOT NULL DEFAULT 0, bound_at INTEGER NOT NULL, is_ending INTEGER NOT NULL DEFAULT 0,
    remaining INTEGER NOT NULL DEFAULT 0, bytes INTEGER DEFAULT 0, ahead INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX claim_number ON claim (qp, source, number) WHERE source IS NOT NULL;
CREATE INDEX claim_ending ON claim (claim_id) WHERE is_ending;
CREATE INDEX claim_part ON claim (part, state, remaining);

CREATE TABLE claimed (
    partition INTEGER NOT NULL, last_seq INTEGER NOT NULL, first_seq INTEGER NOT NULL, lane INTEGER NOT NULL,
    grp INTEGER, receive_count INTEGER NOT NULL, epoch INTEGER NOT NULL, first_received_at INTEGER,
    claim_id INTEGER NOT NULL, shard INTEGER NOT NULL, PRIMARY KEY (partition, last_seq)
) WITHOUT ROWID;
CREATE INDEX claimed_of ON claimed (claim_id, shard, last_seq);

CREATE TABLE renumbered (
    seq INTEGER PRIMARY KEY, queue_id INTEGER NOT NULL, position INTEGER NOT NULL, UNIQUE (queue_id, position)
);
