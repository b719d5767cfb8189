-- Publications: writers, what they have staged, and what of it was decided and is on its way into the queue. All are by the
-- first partition of the queue, as a purge leaves alone what is only staged.
--
-- Locks are taken in one order: partitions, publications, writers, stages.

CREATE TABLE mq.writer (
    writer_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    qp bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    -- The last batch that was published, and its numbers.
    batch bigint,
    messages bigint NOT NULL DEFAULT 0,
    duplicates bigint NOT NULL DEFAULT 0,
    seen_at bigint NOT NULL,
    UNIQUE (qp, name)
) WITH (fillfactor = 70);
CREATE INDEX writer_seen ON mq.writer (seen_at);

-- What one attempt has staged; with a publication, it enters or is dropped by that.
CREATE TABLE mq.stage (
    stage_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    writer_id bigint NOT NULL,
    batch bigint NOT NULL,
    attempt text COLLATE "C" NOT NULL,
    messages bigint NOT NULL DEFAULT 0,
    publication bigint
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX stage_attempt ON mq.stage (writer_id, batch, attempt) WHERE publication IS NULL;
CREATE INDEX stage_publication ON mq.stage (publication) WHERE publication IS NOT NULL;

-- Messages in their order, encoded, so many as a slice takes.
CREATE TABLE mq.piece (
    stage_id bigint NOT NULL,
    part bigint NOT NULL,
    place int NOT NULL,
    messages int NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (stage_id, part, place)
);

-- stages: those that are still to enter, in their order. One without any only drops what it was given.
CREATE TABLE mq.publication (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    qp bigint NOT NULL,
    writer_id bigint,
    batch bigint NOT NULL,
    stages bigint[] NOT NULL,
    messages_per_s_max int,
    next_at bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX publication_of_writer ON mq.publication (writer_id, number);

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['mq.stage', 'mq.piece', 'mq.publication'] LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
            autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off)', name);
    END LOOP;
END $$;
