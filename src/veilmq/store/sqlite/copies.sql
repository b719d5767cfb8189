-- name: copied_tables
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name;

-- name: last_queue
SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'queue';

-- name: copied_count
SELECT coalesce(sum(messages), 0) FROM part WHERE NOT retired;

-- name: copied_standard
-- The messages of a partition from a seq on, with the columns of CopiedMessage; the group is a number.
SELECT
    m.seq, m.id, m.body, m.properties, iif(v.lane > 16, v.lane - 16, v.lane), coalesce(m.moved_at_ms, m.seq >> 20),
    m.seq >> 20, v.visible_at, v.receive_count, v.generation, v.epoch, coalesce(v.received_at, 0),
    iif(m.source IS NULL, v.first_received_at, m.first_received_at_ms), m.source, coalesce(m.receives_before, 0), v.grp, v.log
FROM visibility v CROSS JOIN message m ON m.seq = v.seq WHERE v.partition = ?1 AND v.seq >= ?2
UNION ALL
SELECT
    m.seq, m.id, m.body, m.properties, r.lane, coalesce(m.moved_at_ms, m.seq >> 20), m.seq >> 20, m.seq >> 20, 0, 0, 0, 0,
    m.first_received_at_ms, m.source, coalesce(m.receives_before, 0), NULL, 0
FROM ready r CROSS JOIN message m ON m.seq BETWEEN max(r.first_seq, ?2) AND r.last_seq WHERE r.partition = ?1;

-- name: copied_ordered
-- The same for a FIFO queue, in order. A message that follows the queue's delay is visible when it was sent, others just before.
SELECT
    m.seq, m.id, m.body, m.properties, 8, m.seq >> 20, m.seq >> 20,
    coalesce(o.visible_at - (o.receive_count = 0 AND o.visible_at = m.seq >> 20), m.seq >> 20), o.receive_count, o.generation,
    o.epoch, coalesce(o.received_at, 0), iif(m.source IS NULL, o.first_received_at, m.first_received_at_ms), m.source,
    coalesce(m.receives_before, 0), o.grp, o.log
FROM ordered_run r CROSS JOIN message m ON m.seq BETWEEN max(r.first_seq, ?2) AND r.last_seq
    CROSS JOIN ordered o ON o.partition = r.partition AND o.grp = m.grp AND o.seq = m.seq
WHERE r.partition = ?1 ORDER BY r.last_seq;

-- name: number_behind
-- Queues get higher numbers than this one.
INSERT INTO sqlite_sequence (name, seq) VALUES ('queue', ?);

-- name: add_queue
INSERT INTO queue (queue_id, name, settings, created_at, modified_at, qp, origin) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6);

-- name: add_message
INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: free_seq
-- The first free seq from the given one on, and the next used one.
SELECT seq, coalesce((SELECT min(m.seq) FROM message m WHERE m.seq > free.seq), 1 << 62)
FROM (SELECT CASE WHEN EXISTS (SELECT 1 FROM message WHERE seq = ?1) THEN (
    SELECT m.seq + 1 FROM message m
    WHERE m.seq >= ?1 AND NOT EXISTS (SELECT 1 FROM message n WHERE n.seq = m.seq + 1) ORDER BY m.seq LIMIT 1
) ELSE ?1 END AS seq) AS free;

-- name: renumber
INSERT INTO renumbered (seq, queue_id, position) VALUES (?, ?, ?);

-- name: add_visibility
INSERT INTO visibility VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_ordered
INSERT INTO ordered
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?4 IS NOT NULL AND ?5 = 0, NULL, NULL, NULL, NULL, NULL, NULL);

-- name: add_group_cursors
-- Cursors for all groups of a partition, which need an update.
INSERT INTO ordered (partition, grp, seq, head_seq, received_to, own_to, in_flight)
SELECT partition, grp, 0, 0, coalesce(max(seq) FILTER (WHERE receive_count > 0), 0),
       coalesce(max(seq) FILTER (WHERE visible_at IS NOT NULL AND receive_count = 0), 0), 0
FROM ordered WHERE partition = ? GROUP BY grp RETURNING grp;

-- name: renumbered
SELECT seq FROM renumbered WHERE queue_id = ? AND position = ?;

-- name: any_renumbered
SELECT 1 FROM renumbered LIMIT 1;

-- name: old_renumbered
DELETE FROM renumbered WHERE seq IN (SELECT seq FROM renumbered WHERE seq < ? ORDER BY seq LIMIT ?);
