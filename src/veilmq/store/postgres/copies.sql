-- Copies of a stopped store (store/copying.py): read the source, fill the target. No node is running.

-- name: is_used
-- Keys created at the first start of a server do not count.
SELECT EXISTS (SELECT FROM mq.queue) OR EXISTS (SELECT FROM mq.part) OR EXISTS (SELECT FROM mq.topic)
    OR EXISTS (SELECT FROM mq.event) OR EXISTS (SELECT FROM mq.event_batch)
    OR EXISTS (SELECT FROM mq.database) OR EXISTS (SELECT FROM mq.setting WHERE name = 'store_place' AND value <> '0')
    OR EXISTS (SELECT FROM mq.setting WHERE starts_with(name, 'account '))

-- name: copied_tables
SELECT relname FROM pg_class
WHERE relnamespace = 'mq'::regnamespace AND relkind = 'r' AND relpersistence = 'p' AND relname <> 'migration'
ORDER BY oid

-- name: delete_urls
-- The URLs are those of the source's databases; the copy has others.
UPDATE mq.database SET url = NULL

-- name: is_one_of_several
SELECT EXISTS (SELECT FROM mq.database WHERE NOT removed)
    OR EXISTS (SELECT FROM mq.setting WHERE name = 'store_place' AND value <> '0')

-- name: columns
SELECT attname FROM pg_attribute
WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum

-- name: sequences
-- The identity columns with the last numbers of their sequences, null for none.
SELECT 'mq.' || relname, attname, pg_sequence_last_value(pg_get_serial_sequence('mq.' || relname, attname)::regclass)
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = 'mq'::regnamespace AND relkind = 'r' AND attidentity <> '' AND NOT attisdropped

-- name: add_queue
INSERT INTO mq.queue (queue_id, name, settings, created_at, modified_at, qp, origin) OVERRIDING SYSTEM VALUE
VALUES ($1, $2, $3, $4, $5, $6, $6)

-- name: add_part
-- $2: the delay of a FIFO queue in ms, as mq.fifo_delay sets it.
INSERT INTO mq.part (queue_id, delay) VALUES ($1, $2) RETURNING qp

-- name: advance_sequence
SELECT setval(pg_get_serial_sequence($1, $2), greatest($3, nextval(pg_get_serial_sequence($1, $2))))

-- name: add_groups
-- A row for each group, as mq.fifo_settle leaves it.
INSERT INTO mq.fifo_group (qp, group_id, eligible_at, head, last_seq, leased)
SELECT $1, group_id, coalesce(held_to, returned_at, first_at), coalesce(least(returned, leased[1]), first), last, coalesce(leased, '{}')
FROM (
    SELECT group_id, max(seq) AS last,
        array_agg(seq ORDER BY seq) FILTER (WHERE is_leased) AS leased,
        max(ends_at) FILTER (WHERE is_leased) AS held_to,
        max(visible_at) FILTER (WHERE NOT is_leased AND receive_count > 0) AS returned_at,
        min(seq) FILTER (WHERE NOT is_leased AND receive_count > 0) AS returned,
        min(visible_at) AS first_at,
        (array_agg(seq ORDER BY visible_at, seq))[1] AS first
    FROM (SELECT mq.now_ms() AS now) clock CROSS JOIN LATERAL (
        SELECT group_id, seq, receive_count, greatest(sent_at, mq.due(visible_at, sent_at, receive_count, delay)) AS visible_at,
            visible_at > clock.now AND receive_count > 0 AS is_leased, least(visible_at, sent_at + $2) AS ends_at
        FROM mq.part CROSS JOIN mq.fifo_msg WHERE part.qp = $1 AND fifo_msg.qp = $1
    ) AS msg
    GROUP BY group_id
) AS of_group

-- name: last_queue
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('mq.queue', 'queue_id')::regclass), 0)

-- name: copied_count
-- An estimate, from the last vacuum.
SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint FROM pg_class WHERE oid IN ('mq.msg'::regclass, 'mq.fifo_msg'::regclass)

-- name: standard
-- The messages of the queue $1 sent after $2, in the order of their arrival: the later of the position's time and sent_at. The
-- stored priority of messages with a group is 100 higher.
SELECT seq, id, body, coalesce(properties, '') AS properties, (priority % 100)::int AS priority,
    greatest(seq >> 20, sent_at) AS came_at, sent_at, visible_at, receive_count, generation, epoch, received_at,
    first_received_at, source, receives_before, group_key::text AS "group", coalesce(log, 0) AS log
FROM mq.queue JOIN mq.part USING (qp) JOIN mq.msg USING (qp)
WHERE queue.queue_id = $1 AND sent_at > $2 AND (sent_at > ended_until OR seq >= ended_before)
ORDER BY came_at, seq

-- name: fifo
-- A message whose visible_at equals its sent_at follows the delay of its queue; in a copy, visible_at is then came_at.
SELECT seq, id, body, coalesce(properties, '') AS properties, 8, greatest(seq >> 20, sent_at) AS came_at, sent_at,
    CASE WHEN receive_count = 0 AND visible_at = sent_at THEN greatest(seq >> 20, sent_at) ELSE visible_at END AS visible_at,
    receive_count, generation, epoch, received_at, first_received_at, source, receives_before,
    group_id AS "group", coalesce(log, 0) AS log
FROM mq.queue JOIN mq.fifo_msg USING (qp)
WHERE queue.queue_id = $1 AND sent_at > $2
ORDER BY seq

-- name: deduplication_log
SELECT queue_id, key, id, seq, expires_at - $1 FROM mq.accepted JOIN mq.queue ON accepted.qp = queue.origin
WHERE expires_at > mq.now_ms() ORDER BY expires_at

-- name: add_turns
-- A row for each group of a fair queue, as mq.fair_touch leaves it.
INSERT INTO mq.fair_turn (qp, group_key, priority, at, sent_at)
SELECT qp, group_key, priority, min(visible_at), max(sent_at) FROM mq.msg WHERE qp = $1 AND group_key IS NOT NULL
GROUP BY qp, group_key, priority
