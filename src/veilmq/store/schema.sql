-- The tables that both dialects share. Words in braces differ: an autoincremented column (id), a numeric key (number), names
-- (name), bytes, and whether the table is its own index (keyed). store/model.md describes the tables and columns. A change
-- also needs a script in postgres/migrations.

CREATE TABLE pause (kind text NOT NULL, name {name} NOT NULL, begun_at bigint NOT NULL, PRIMARY KEY (kind, name)){keyed};
CREATE INDEX pause_age ON pause (kind, begun_at);

CREATE TABLE event_batch (number {number} PRIMARY KEY, events integer NOT NULL, encoded {bytes} NOT NULL);

CREATE TABLE topic (
    topic_id {id}, name {name} NOT NULL UNIQUE, settings {bytes} NOT NULL, created_at bigint NOT NULL,
    modified_at bigint NOT NULL
);
CREATE TABLE subscription (
    topic_id bigint NOT NULL, name {name} NOT NULL, content {bytes} NOT NULL, pushed boolean NOT NULL,
    created_at bigint NOT NULL, modified_at bigint NOT NULL, PRIMARY KEY (topic_id, name)
){keyed};
CREATE INDEX subscription_pushed ON subscription (topic_id, name) WHERE pushed;

CREATE TABLE move (
    number {id}, id {bytes} NOT NULL, queue_id bigint NOT NULL, source {name} NOT NULL, destination {name},
    moves_per_s_max integer, status text NOT NULL, moved bigint NOT NULL DEFAULT 0, to_move bigint NOT NULL,
    started_at bigint NOT NULL, next_at bigint NOT NULL, failure text, starter text
);
CREATE UNIQUE INDEX move_running ON move (queue_id) WHERE status = 'running';
CREATE INDEX move_due ON move (next_at) WHERE status = 'running';
CREATE INDEX move_of_queue ON move (queue_id, number);

CREATE TABLE writer (
    writer_id {id}, qp bigint NOT NULL, name {name} NOT NULL, batch bigint, messages bigint NOT NULL DEFAULT 0,
    duplicates bigint NOT NULL DEFAULT 0, seen_at bigint NOT NULL, UNIQUE (qp, name)
);
CREATE INDEX writer_seen ON writer (seen_at);

CREATE TABLE stage (
    stage_id {id}, writer_id bigint NOT NULL, batch bigint NOT NULL, attempt {name} NOT NULL,
    messages bigint NOT NULL DEFAULT 0, publication bigint
);
CREATE UNIQUE INDEX stage_attempt ON stage (writer_id, batch, attempt) WHERE publication IS NULL;
CREATE INDEX stage_publication ON stage (publication) WHERE publication IS NOT NULL;

CREATE TABLE piece (
    stage_id bigint NOT NULL, part bigint NOT NULL, place integer NOT NULL, messages integer NOT NULL,
    content {bytes} NOT NULL, PRIMARY KEY (stage_id, part, place)
);

CREATE TABLE source (
    qp bigint NOT NULL, name {name} NOT NULL, consumer {name} NOT NULL DEFAULT '', epoch bigint NOT NULL DEFAULT 0,
    acknowledged bigint NOT NULL DEFAULT 0, last bigint NOT NULL DEFAULT 0, hold bigint NOT NULL DEFAULT 0,
    lease bigint NOT NULL DEFAULT 0, beat_at bigint NOT NULL, look_at bigint NOT NULL, PRIMARY KEY (qp, name)
){keyed};
CREATE INDEX source_look ON source (look_at);
