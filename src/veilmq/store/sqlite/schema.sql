-- The tables of the SQLite dialect.
--
-- A message has one sequence number (seq) for as long as it stays in a queue: milliseconds of store time << 20 | counter.
-- So seq orders messages by sending, seq >> 20 is the instant of sending, and retention is a comparison of seq.
-- Instants are milliseconds of store time. A partition holds the messages of a queue from one purge to the next.

CREATE TABLE setting (name TEXT PRIMARY KEY, value ANY NOT NULL) WITHOUT ROWID;

-- One row. The instant of the last batch and the last seq are the greatest of these and of all partitions: a batch that
-- writes totals of a partition, as all hot commands do, saves itself the page of this one.
CREATE TABLE progress (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    last_instant_ms INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    mark BLOB
);
INSERT INTO progress VALUES (1, 0, 0, NULL);

-- qp is the partition of today, origin the first one, which never changes.
CREATE TABLE queue (
    queue_id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    settings BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    modified_at INTEGER NOT NULL,
    qp INTEGER NOT NULL,
    origin INTEGER NOT NULL,
    dead_letter_queue TEXT NOT NULL AS (CAST(settings AS TEXT) ->> 'dead_letter_queue') VIRTUAL
);
CREATE INDEX queue_origin ON queue (origin);
CREATE INDEX queue_source ON queue (dead_letter_queue, name) WHERE dead_letter_queue <> '';

-- The janitor deletes the messages of a partition that is retired; of that of a logged queue the last two columns are the
-- name of the queue and its first partition.
-- in_flight and delayed count what is hidden at counted_at. What has a seq below floor_seq is past its retention.
CREATE TABLE part (
    qp INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id INTEGER NOT NULL,
    retired INTEGER NOT NULL DEFAULT 0,
    retired_at INTEGER,
    messages INTEGER NOT NULL DEFAULT 0,
    in_flight INTEGER NOT NULL DEFAULT 0,
    delayed INTEGER NOT NULL DEFAULT 0,
    counted_at INTEGER NOT NULL DEFAULT 0,
    last_seq INTEGER NOT NULL DEFAULT 0,
    floor_seq INTEGER NOT NULL DEFAULT 0,
    log_queue TEXT,
    log_origin INTEGER
);
CREATE INDEX part_retired ON part (qp) WHERE retired;

-- Written once and deleted. The last four columns are those of dead letters: where it comes from, how often and when
-- first it was received there, and when it came here if it kept its seq.
CREATE TABLE message (
    seq INTEGER PRIMARY KEY,
    grp INTEGER,
    id BLOB NOT NULL,
    properties BLOB NOT NULL,
    body TEXT NOT NULL,
    source TEXT,
    receives_before INTEGER,
    first_received_at_ms INTEGER,
    moved_at_ms INTEGER
);

-- The ready list of a standard queue: messages that were never received, nor delayed, and have no group. They have no row
-- but their message: those that were sent together follow each other, and a run of them is one row. Receives take them from
-- the front; a message is visible from seq >> 20 on.
CREATE TABLE ready (
    partition INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    PRIMARY KEY (partition, lane, last_seq)
) WITHOUT ROWID;

-- What changes of each other message in a standard queue. lane is its priority, and 16 more for messages of groups (grp).
-- Receipts find it by its key, receives by the index, which says of what is hidden whether it was received. log is what
-- the end of the receipt has to know of its receive (engines/held.py), 0 where that is not logged.
CREATE TABLE visibility (
    partition INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    visible_at INTEGER NOT NULL,
    grp INTEGER,
    receive_count INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    received_at INTEGER,
    first_received_at INTEGER,
    log INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (partition, seq)
) WITHOUT ROWID;
CREATE INDEX visible ON visibility (partition, lane, visible_at, seq, receive_count);
CREATE INDEX visible_of_group ON visibility (partition, lane, grp, visible_at, seq) WHERE grp IS NOT NULL;

-- The first message of each message group of a standard queue.
CREATE TABLE fair_group (
    partition INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    grp INTEGER NOT NULL,
    head_at INTEGER NOT NULL,
    head_seq INTEGER NOT NULL,
    PRIMARY KEY (partition, lane, grp)
) WITHOUT ROWID;
CREATE INDEX fair_head ON fair_group (partition, lane, head_at, head_seq);

-- The same in a FIFO queue, by group and order. visible_at is NULL while the message follows the queue's delay: it has no
-- delay of its own and was never received. A hidden message is counted with its group (in_flight) unless it is apart: it
-- has a deadline of its own.
--
-- Before its messages each group that has any has its cursor, with a seq of 0 and the last six columns: both change
-- together, and are on one page. fixed_at is the instant from which the group gives its next message, at head_seq.
-- floating_seq is the first message that follows the queue's delay, NULL while a received one blocks the group; where
-- there is no fixed_at, it is the head. Nothing behind received_to was received yet, and what is also behind own_to
-- follows the queue's delay. in_flight is how many messages are hidden until fixed_at.
CREATE TABLE ordered (
    partition INTEGER NOT NULL,
    grp INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    visible_at INTEGER,
    receive_count INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0,
    received_at INTEGER,
    first_received_at INTEGER,
    log INTEGER NOT NULL DEFAULT 0,
    apart INTEGER NOT NULL DEFAULT 0,
    fixed_at INTEGER,
    head_seq INTEGER,
    floating_seq INTEGER,
    received_to INTEGER,
    own_to INTEGER,
    in_flight INTEGER,
    PRIMARY KEY (partition, grp, seq)
) WITHOUT ROWID;
CREATE INDEX ordered_apart ON ordered (partition, visible_at, receive_count) WHERE apart = 1;
CREATE INDEX group_due ON ordered (partition, fixed_at, head_seq, in_flight) WHERE seq = 0;
CREATE INDEX group_also_floating ON ordered (partition, floating_seq)
WHERE seq = 0 AND fixed_at IS NOT NULL AND floating_seq IS NOT NULL;

-- The messages of a FIFO queue that were sent together, in the order of sending, and how many of them are left.
CREATE TABLE ordered_run (
    partition INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    PRIMARY KEY (partition, last_seq)
) WITHOUT ROWID;

-- The numbers of groups: a group is known by a keyed hash of its name, and its number is the seq of its first message,
-- so what is busy at a time lies together. The janitor removes groups without messages.
CREATE TABLE message_group (
    partition INTEGER NOT NULL,
    hash INTEGER NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (partition, hash)
) WITHOUT ROWID;
CREATE INDEX message_group_number ON message_group (partition, number);

-- The deduplication log: the entries of a batch in one row, numbered by its first one.
CREATE TABLE accepted (number INTEGER PRIMARY KEY, accepted_at_ms INTEGER NOT NULL, entries BLOB NOT NULL);

-- What a receive with an attempt id gave.
CREATE TABLE attempt (key BLOB PRIMARY KEY, taken BLOB NOT NULL, attempted_at_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX attempt_age ON attempt (attempted_at_ms);

-- When a queue was purged, or a name deleted, for as long as that matters.
CREATE TABLE pause (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    begun_at INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE INDEX pause_age ON pause (kind, begun_at);

-- The events of a batch, encoded, in one row; its number is that of the first one. Rows go when they are exported.
CREATE TABLE event_batch (number INTEGER PRIMARY KEY, events INTEGER NOT NULL, encoded BLOB NOT NULL);

-- How far the export of events is, in one row. The last number that was given is that of the last batch (or exported):
-- kept here, it would cost each batch another page.
CREATE TABLE event_state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    planned INTEGER NOT NULL,
    exported INTEGER NOT NULL,
    dropped INTEGER NOT NULL
);
INSERT INTO event_state VALUES (1, 0, 0, 0);

-- Receipts that ended without a deletion, in the order in which that was seen: a late delete finds its event here, which
-- it corrects, once.
CREATE TABLE expired_receipt (
    number INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    event BLOB NOT NULL
);
CREATE INDEX expired_receipt_seq ON expired_receipt (seq, generation);

-- Topics and subscriptions; content is the subscription in JSON. pushed: it has a queue of its own.
CREATE TABLE topic (
    topic_id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    settings BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    modified_at INTEGER NOT NULL
);
CREATE TABLE subscription (
    topic_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    content BLOB NOT NULL,
    pushed INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    modified_at INTEGER NOT NULL,
    PRIMARY KEY (topic_id, name)
) WITHOUT ROWID;
CREATE INDEX subscription_pushed ON subscription (topic_id, name) WHERE pushed;

-- Move tasks.
CREATE TABLE move (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL,
    queue_id INTEGER NOT NULL,
    source TEXT NOT NULL,
    destination TEXT,
    moves_per_s_max INTEGER,
    status TEXT NOT NULL,
    moved INTEGER NOT NULL DEFAULT 0,
    to_move INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    next_at INTEGER NOT NULL,
    failure TEXT,
    starter TEXT
);
CREATE UNIQUE INDEX move_running ON move (queue_id) WHERE status = 'running';
CREATE INDEX move_due ON move (next_at) WHERE status = 'running';
CREATE INDEX move_of_queue ON move (queue_id, number);

-- Who publishes to a queue (qp: its origin). The last batch that was published, and its numbers.
CREATE TABLE writer (
    writer_id INTEGER PRIMARY KEY AUTOINCREMENT,
    qp INTEGER NOT NULL,
    name TEXT NOT NULL,
    batch INTEGER,
    messages INTEGER NOT NULL DEFAULT 0,
    duplicates INTEGER NOT NULL DEFAULT 0,
    seen_at INTEGER NOT NULL,
    UNIQUE (qp, name)
);
CREATE INDEX writer_seen ON writer (seen_at);

-- What one attempt has staged; with a publication, it enters or is dropped by that.
CREATE TABLE stage (
    stage_id INTEGER PRIMARY KEY AUTOINCREMENT,
    writer_id INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    attempt TEXT NOT NULL,
    messages INTEGER NOT NULL DEFAULT 0,
    publication INTEGER
);
CREATE UNIQUE INDEX stage_attempt ON stage (writer_id, batch, attempt) WHERE publication IS NULL;
CREATE INDEX stage_publication ON stage (publication) WHERE publication IS NOT NULL;

-- Messages in their order, encoded, so many as a slice takes.
CREATE TABLE piece (
    stage_id INTEGER NOT NULL,
    part INTEGER NOT NULL,
    place INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (stage_id, part, place)
);

-- stages: those that are still to enter, in their order, as PostgreSQL writes an array. One without any only drops what
-- it was given.
CREATE TABLE publication (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    qp INTEGER NOT NULL,
    writer_id INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    stages TEXT NOT NULL,
    messages_per_s_max INTEGER,
    next_at INTEGER NOT NULL
);
CREATE INDEX publication_of_writer ON publication (writer_id, number);

-- Readers of queues, by the origin of their queue: they outlive a purge. hold and lease are lengths in ms. look_at is when
-- the hold of a source, or its time, may have ended.
CREATE TABLE source (
    qp INTEGER NOT NULL,
    name TEXT NOT NULL,
    consumer TEXT NOT NULL DEFAULT '',
    epoch INTEGER NOT NULL DEFAULT 0,
    acknowledged INTEGER NOT NULL DEFAULT 0,
    last INTEGER NOT NULL DEFAULT 0,
    hold INTEGER NOT NULL DEFAULT 0,
    lease INTEGER NOT NULL DEFAULT 0,
    beat_at INTEGER NOT NULL,
    look_at INTEGER NOT NULL,
    PRIMARY KEY (qp, name)
) WITHOUT ROWID;
CREATE INDEX source_look ON source (look_at);

-- Claims of sources. qp is the origin of the queue, part the partition of the messages. filled: messages in the last shard
-- of a standard queue's. is_ending: messages are still to be deleted or to be given back. Without a source it is dropped
-- when it has ended. remaining messages stand in claimed and claimed_run; bytes is how long all are, NULL where they were
-- not measured. What users see of instants is later by ahead, as it was when the claim was bound.
CREATE TABLE claim (
    claim_id INTEGER PRIMARY KEY,
    qp INTEGER NOT NULL,
    part INTEGER NOT NULL,
    source TEXT,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    messages INTEGER NOT NULL DEFAULT 0,
    shards INTEGER NOT NULL DEFAULT 0,
    filled INTEGER NOT NULL DEFAULT 0,
    bound_at INTEGER NOT NULL,
    is_ending INTEGER NOT NULL DEFAULT 0,
    remaining INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER DEFAULT 0,
    ahead INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX claim_number ON claim (qp, source, number) WHERE source IS NOT NULL;
CREATE INDEX claim_ending ON claim (claim_id) WHERE is_ending;
CREATE INDEX claim_part ON claim (part, state, remaining);

-- Claimed messages that were never received before: what was a run of the ready list, or a piece of one, is a row here.
CREATE TABLE claimed_run (
    partition INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    claim_id INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    PRIMARY KEY (partition, last_seq)
) WITHOUT ROWID;
CREATE INDEX claimed_run_of ON claimed_run (claim_id, shard, last_seq);

-- The other ones, in place of their row in visibility, as it is when they return. The row in ordered stays, as it blocks the
-- group, hidden until an instant that never comes; the message is not counted in its run.
CREATE TABLE claimed (
    partition INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    grp INTEGER,
    receive_count INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    first_received_at INTEGER NOT NULL,
    claim_id INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    PRIMARY KEY (partition, seq)
) WITHOUT ROWID;
CREATE INDEX claimed_of ON claimed (claim_id, shard, seq);

-- Receipts of the store that this one was copied from name positions there: of those messages the seqs here.
CREATE TABLE renumbered (
    seq INTEGER PRIMARY KEY,
    queue_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    UNIQUE (queue_id, position)
);
