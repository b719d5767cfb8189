-- What cold commands need here in words of PostgreSQL's own; all else of theirs is in store/queries.

-- name: now
SELECT mq.now_ms()

-- name: lock_event_state
SELECT FROM mq.event_state FOR UPDATE

-- name: event_state
SELECT recorded, planned, exported, dropped FROM mq.event_state

-- name: lock_topic
SELECT FROM mq.topic WHERE name = $1 FOR UPDATE

-- name: lock_sources
-- Those of a queue, as far as two of one consumer are not opened at one time.
SELECT pg_advisory_xact_lock(hashtextextended('sources', $1))

-- name: lock_queue_shared
-- Holds off purge and deletion.
SELECT FROM queue WHERE name = $1 FOR SHARE

-- name: lock_writer_shared
SELECT FROM writer WHERE qp = $1 AND name = $2 FOR SHARE

-- name: lock_writer
SELECT FROM writer WHERE qp = $1 AND name = $2 FOR UPDATE

-- name: insert_publication
INSERT INTO publication (qp, writer_id, batch, stages, messages_per_s_max, next_at)
VALUES ($1, $2, $3, $4::text::bigint[], $5, $6) RETURNING number

-- name: put_publication
UPDATE publication SET stages = $2::text::bigint[], next_at = $3 WHERE number = $1
