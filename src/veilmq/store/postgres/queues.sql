-- Queries of cold commands that only PostgreSQL understands (the others are in store/queries), and of the check of the clock.

-- name: find_queue
-- The last column: messages of the standard queue have groups.
SELECT queue_id, name, settings, created_at, modified_at, qp, origin,
    (SELECT 100 < ANY(priorities) FROM mq.part WHERE part.qp = queue.qp)
FROM mq.queue WHERE name = $1

-- name: queue_sources
SELECT name FROM mq.queue
WHERE convert_from(settings, 'UTF8')::jsonb ->> 'dead_letter_queue' = $1 AND name > $2 ORDER BY name LIMIT $3

-- name: insert_setting
-- Insert a setting unless it exists; return its value.
INSERT INTO mq.setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING value

-- name: await_standbys
-- Makes a commit that wrote nothing wait for the synchronous standbys, which may not have the commits that its statements saw.
SELECT pg_logical_emit_message(true, 'veilmq', '') WHERE current_setting('synchronous_standby_names') <> ''

-- name: now
SELECT mq.now_ms()

-- name: event_state
SELECT recorded, planned, exported, dropped FROM mq.event_state

-- name: lock_sources
-- Serialise the opening of sources of a queue.
SELECT pg_advisory_xact_lock(hashtextextended('sources', $1))

-- name: find_claimed
-- Among the messages of the claim $2, by id.
SELECT seq FROM mq.message WHERE qp = $1 AND claim = $2 AND id = $3

-- name: insert_publication
INSERT INTO publication (qp, writer_id, batch, stages, messages_per_s_max, next_at)
VALUES ($1, $2, $3, $4::text::bigint[], $5, $6) RETURNING number

-- name: put_publication
UPDATE publication SET stages = $2::text::bigint[], next_at = $3 WHERE number = $1

-- name: delete_arrivals
DELETE FROM mq.arrival WHERE qp = $1

-- name: clock
-- The current time, the last confirmed one, the node that doubts the clock, and how often an operator trusted the clock.
SELECT mq.now_ms() AS now, confirmed_at, doubted_by, coalesce(trusts, 0) AS trusts
FROM (VALUES (1)) AS always LEFT JOIN mq.clock ON true

-- name: confirm_clock
-- Confirm the current time, unless a node other than $1 doubts the clock.
INSERT INTO mq.clock (confirmed_at) VALUES (mq.now_ms())
ON CONFLICT (only_row) DO UPDATE SET confirmed_at = excluded.confirmed_at, doubted_by = NULL
WHERE clock.doubted_by IS NOT DISTINCT FROM $1 OR clock.doubted_by IS NULL

-- name: doubt_clock
INSERT INTO mq.clock (confirmed_at, doubted_by) VALUES ($2, $1)
ON CONFLICT (only_row) DO UPDATE SET doubted_by = $1 WHERE clock.doubted_by IS NULL

-- name: trust_clock
INSERT INTO mq.clock (confirmed_at, trusts) VALUES (mq.now_ms(), 1)
ON CONFLICT (only_row) DO UPDATE SET confirmed_at = excluded.confirmed_at, doubted_by = NULL, trusts = clock.trusts + 1
