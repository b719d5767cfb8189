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
