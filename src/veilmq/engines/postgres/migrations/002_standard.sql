-- Queues, and the messages of standard queues.
--
-- Every table of the data plane begins with qp, the number of a queue partition: an incarnation of a queue, never used
-- again. A statement of the data plane names one qp, so that a qp can live on any server.

CREATE TABLE mq.meta (
    key text PRIMARY KEY,
    value bytea NOT NULL
);

CREATE TABLE mq.queue (
    queue_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    settings bytea NOT NULL,
    created_at bigint NOT NULL,
    modified_at bigint NOT NULL,
    -- The partition of today, and the first one, which never changes.
    qp bigint NOT NULL,
    origin bigint NOT NULL
);

-- Partitions: what a statement must know of one to act on it.
CREATE TABLE mq.part (
    qp bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id bigint NOT NULL,
    retired boolean NOT NULL DEFAULT false,
    priorities smallint[] NOT NULL DEFAULT '{8}',
    -- What was sent up to then is past a retention that was in force, if it stands before that position.
    ended_until bigint NOT NULL DEFAULT 0,
    ended_before bigint NOT NULL DEFAULT 0
);

-- When a name was deleted, or a queue purged, for as long as that matters.
CREATE TABLE mq.pause (
    kind text NOT NULL,
    name text COLLATE "C" NOT NULL,
    begun_at bigint NOT NULL,
    PRIMARY KEY (kind, name)
);

-- seq is the instant of coming to the queue and a counter; sent_at that of the first sending, from which retention counts.
CREATE TABLE mq.msg (
    qp bigint NOT NULL,
    seq bigint NOT NULL,
    visible_at bigint NOT NULL,
    sent_at bigint NOT NULL,
    first_received_at bigint,
    received_at bigint NOT NULL DEFAULT 0,
    receive_count int NOT NULL DEFAULT 0,
    generation bigint NOT NULL DEFAULT 0,
    epoch bigint NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    id bytea NOT NULL,
    properties bytea,
    -- Of a dead letter: the queue it came from, and its receives there. Its first receive stays what it was.
    source text,
    receives_before int NOT NULL DEFAULT 0,
    body text NOT NULL,
    PRIMARY KEY (qp, seq)
);
CREATE INDEX msg_visible ON mq.msg (qp, priority, visible_at, seq);

-- Rows live seconds: vacuum by their number, not by their share.
ALTER TABLE mq.msg SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_analyze_threshold = 100000,
    vacuum_truncate = off
);
