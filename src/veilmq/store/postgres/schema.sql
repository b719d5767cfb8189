-- The tables of PostgreSQL in addition to those of both dialects (store/schema.sql); functions.sql has the functions and triggers.
-- store/model.md describes each table and column, and why some differ from those of SQLite. A change also needs a migration script.

CREATE TABLE mq.setting (name text PRIMARY KEY, value bytea NOT NULL);

CREATE TABLE mq.clock (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), confirmed_at bigint NOT NULL, doubted_by text,
    trusts integer NOT NULL DEFAULT 0
);

-- Queues.

CREATE TABLE mq.queue (
    queue_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE,
    settings bytea NOT NULL, created_at bigint NOT NULL, modified_at bigint NOT NULL, qp bigint NOT NULL,
    origin bigint NOT NULL
);
CREATE INDEX queue_origin ON mq.queue (origin);

CREATE TABLE mq.part (
    qp bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue_id bigint NOT NULL,
    retired boolean NOT NULL DEFAULT false, priorities smallint[] NOT NULL DEFAULT '{8}',
    ended_until bigint NOT NULL DEFAULT 0, ended_before bigint NOT NULL DEFAULT 0, retired_at bigint, log_queue text,
    log_origin bigint, delay bigint NOT NULL DEFAULT 0, late_from bigint NOT NULL DEFAULT 0,
    late_until bigint NOT NULL DEFAULT 0
);
CREATE INDEX part_retired ON mq.part (queue_id) WHERE retired;

CREATE UNLOGGED TABLE mq.throttle (
    qp bigint PRIMARY KEY, instants bigint[] NOT NULL DEFAULT '{}', counts integer[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

CREATE UNLOGGED TABLE mq.in_flight (
    qp bigint PRIMARY KEY, next_at bigint NOT NULL, counted integer
) WITH (fillfactor = 50);

-- Messages.

CREATE TABLE mq.msg (
    qp bigint NOT NULL, seq bigint NOT NULL, visible_at bigint NOT NULL, sent_at bigint NOT NULL,
    first_received_at bigint, received_at bigint NOT NULL DEFAULT 0, receive_count integer NOT NULL DEFAULT 0,
    generation bigint NOT NULL DEFAULT 0, epoch bigint NOT NULL DEFAULT 0, priority smallint NOT NULL,
    id bytea NOT NULL, properties bytea, source text, receives_before integer NOT NULL DEFAULT 0, body text NOT NULL,
    group_key bigint, claim bigint, shard integer, log bigint, PRIMARY KEY (qp, seq)
) WITH (
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 100000
);
CREATE INDEX msg_visible ON mq.msg (qp, priority, visible_at, seq);
CREATE INDEX msg_moved ON mq.msg (qp, sent_at) WHERE source IS NOT NULL;
CREATE INDEX msg_group ON mq.msg (qp, priority, group_key, visible_at, seq) WHERE group_key IS NOT NULL;
CREATE INDEX msg_claim ON mq.msg (qp, claim, shard, seq) WHERE claim IS NOT NULL;

CREATE TABLE mq.fair_turn (
    qp bigint NOT NULL, group_key bigint NOT NULL, priority smallint NOT NULL, at bigint NOT NULL,
    sent_at bigint NOT NULL, PRIMARY KEY (qp, group_key, priority)
) WITH (fillfactor = 70);
CREATE INDEX fair_turn_at ON mq.fair_turn (qp, priority, at);

CREATE TABLE mq.fifo_msg (
    qp bigint NOT NULL, seq bigint NOT NULL, visible_at bigint NOT NULL, sent_at bigint NOT NULL,
    first_received_at bigint, received_at bigint NOT NULL DEFAULT 0, receive_count integer NOT NULL DEFAULT 0,
    generation bigint NOT NULL DEFAULT 0, epoch bigint NOT NULL DEFAULT 0, group_id text COLLATE "C" NOT NULL,
    id bytea NOT NULL, properties bytea, source text, receives_before integer NOT NULL DEFAULT 0, body text NOT NULL,
    claim bigint, shard integer, log bigint, PRIMARY KEY (qp, seq)
) WITH (fillfactor = 80);
CREATE INDEX fifo_msg_group ON mq.fifo_msg (qp, group_id, seq);
CREATE INDEX fifo_msg_claim ON mq.fifo_msg (qp, claim, shard, seq) WHERE claim IS NOT NULL;

CREATE TABLE mq.fifo_group (
    qp bigint NOT NULL, group_id text COLLATE "C" NOT NULL, eligible_at bigint NOT NULL, head bigint NOT NULL,
    last_seq bigint NOT NULL, leased bigint[] NOT NULL DEFAULT '{}', PRIMARY KEY (qp, group_id)
) WITH (fillfactor = 70);
CREATE INDEX fifo_group_eligible ON mq.fifo_group (qp, eligible_at, head);

CREATE TABLE mq.accepted (
    qp bigint NOT NULL, key bytea NOT NULL, expires_at bigint NOT NULL, seq bigint NOT NULL, id bytea NOT NULL,
    PRIMARY KEY (qp, key)
);
CREATE INDEX accepted_expires ON mq.accepted (qp, expires_at);

CREATE TABLE mq.attempt (
    qp bigint NOT NULL, key bytea NOT NULL, attempted_at bigint NOT NULL, seqs bigint[] NOT NULL,
    generations bigint[] NOT NULL, epochs bigint[] NOT NULL, issued bigint[] NOT NULL, deadlines bigint[] NOT NULL,
    PRIMARY KEY (qp, key)
);
CREATE INDEX attempt_attempted ON mq.attempt (qp, attempted_at);

-- Claims.

CREATE TABLE mq.claim (
    claim_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, qp bigint NOT NULL, part bigint NOT NULL,
    source text COLLATE "C", number bigint NOT NULL, state text NOT NULL, messages integer NOT NULL DEFAULT 0,
    shards integer NOT NULL DEFAULT 0, filled integer NOT NULL DEFAULT 0, bound_at bigint NOT NULL,
    is_ending boolean NOT NULL DEFAULT false
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX claim_number ON mq.claim (qp, source, number) WHERE source IS NOT NULL;
CREATE INDEX claim_ending ON mq.claim (claim_id) WHERE is_ending;
CREATE INDEX claim_acknowledged ON mq.claim (part) WHERE state = 'acknowledged';

CREATE TABLE mq.publication (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, qp bigint NOT NULL, writer_id bigint, batch bigint NOT NULL,
    stages bigint[] NOT NULL, messages_per_s_max integer, next_at bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX publication_of_writer ON mq.publication (writer_id, number);

-- Events. The type has the fields of a message and its receipt that an event needs; a whole row would be read with its body.

CREATE TYPE mq.receipt AS (
    seq bigint, generation bigint, received_at bigint, visible_at bigint, came_at bigint, receive_count integer, log bigint,
    group_hash bigint, size integer, id bytea, properties bytea
);

CREATE TABLE mq.event (
    qp bigint NOT NULL, seq bigint NOT NULL, generation bigint NOT NULL, queue text NOT NULL, outcome text NOT NULL,
    closed_at bigint NOT NULL, received_at bigint NOT NULL, visible_at bigint NOT NULL, came_at bigint NOT NULL,
    receive_count integer NOT NULL, log bigint NOT NULL, group_hash bigint, size integer NOT NULL, id bytea NOT NULL,
    properties bytea, number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY
);

CREATE TABLE mq.expired_receipt (LIKE mq.event, seen_at bigint NOT NULL, PRIMARY KEY (qp, seq, generation));
CREATE INDEX expired_receipt_number ON mq.expired_receipt (qp, number);

CREATE TABLE mq.event_state (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), recorded bigint NOT NULL DEFAULT 0,
    planned bigint NOT NULL DEFAULT 0, exported bigint NOT NULL DEFAULT 0, dropped bigint NOT NULL DEFAULT 0
);

-- Several databases as one store.

CREATE TABLE mq.database (place smallint PRIMARY KEY, url text, removed boolean NOT NULL DEFAULT false);

CREATE TABLE mq.shard_of (name text COLLATE "C" PRIMARY KEY, place smallint NOT NULL);
CREATE INDEX shard_of_place ON mq.shard_of (place, name);

CREATE TABLE mq.outbox (
    qp bigint PRIMARY KEY, source_id bigint NOT NULL, source text COLLATE "C" NOT NULL, place smallint NOT NULL,
    target_id bigint NOT NULL, target text COLLATE "C" NOT NULL, settings bytea NOT NULL,
    number bigint NOT NULL DEFAULT 0, token bytea NOT NULL DEFAULT '', seqs bigint[] NOT NULL DEFAULT '{}',
    next_at bigint NOT NULL DEFAULT 0, ended_at bigint, UNIQUE (source_id, place, target_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE TABLE mq.arrival (
    qp bigint NOT NULL, from_place smallint NOT NULL, from_qp bigint NOT NULL, number bigint NOT NULL,
    token bytea NOT NULL, PRIMARY KEY (qp, from_place, from_qp)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Tables with frequent updates.
ALTER TABLE mq.source SET (fillfactor = 70);
ALTER TABLE mq.stage SET (fillfactor = 70);
ALTER TABLE mq.writer SET (fillfactor = 70);

-- Tables whose rows live for seconds: vacuum by the number of dead rows, not by their share, and keep the pages.
DO $$
DECLARE
    each record;
BEGIN
    FOR each IN SELECT dead_rows, unnest(names) AS name FROM (VALUES
        (20000, '{msg,fifo_msg,fifo_group,fair_turn,accepted,attempt,event,expired_receipt,event_batch}'::text[]),
        (1000, '{source,stage,piece,publication}')
    ) AS vacuumed (dead_rows, names)
    LOOP
        EXECUTE format(
            'ALTER TABLE mq.%I SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = %s, '
            'autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off)', each.name, each.dead_rows
        );
    END LOOP;
END $$;
