-- Conversion of a data folder of an earlier version; its database is attached as old.
-- An old position is lane << 41 | is_delayed << 40 | number; a lane without a queue was purged.

-- name: facts
SELECT name, value FROM old.meta;

-- name: message_count
SELECT count(*) FROM old.message;

-- name: last_queue
SELECT coalesce(max(seq), 0) FROM old.sqlite_sequence WHERE name = 'queue';

-- name: queues
SELECT number, name, settings, created_at_ms, modified_at_ms FROM old.queue ORDER BY number;

-- name: lanes
-- With the last sending time of the expired messages in each that are not deleted yet.
SELECT number, priority, (
    SELECT max(coalesce(first_sent_at_ms, sent_at_ms)) FROM old.message
    WHERE position BETWEEN lane.number << 41 AND direct_floor - 1
        OR position BETWEEN (lane.number << 41) + (1 << 40) AND delayed_floor - 1
) FROM old.lane WHERE queue = ? ORDER BY priority, sequence_base, number;

-- name: messages
-- The messages of a lane, in order, with the columns of CopiedMessage (the group is its hash) and of their claims. In a FIFO
-- queue (?3), a message with its own delay is visible just before it was sent, as it does not follow the queue's delay.
SELECT
    m.position, m.id, m.body, m.properties, ?2, m.sent_at_ms, coalesce(m.first_sent_at_ms, m.sent_at_ms),
    coalesce(l.visible_at_ms - (?3 AND l.receive_count = 0 AND l.visible_at_ms = m.sent_at_ms), m.sent_at_ms),
    coalesce(l.receive_count, 0), coalesce(l.generation, 0), coalesce(l.epoch, 0), coalesce(l.received_at_ms, 0),
    iif(m.source IS NULL, nullif(l.first_received_at_ms, 0), m.first_received_at_ms), m.source,
    coalesce(m.receives_before, 0), m.group_key, coalesce(l.log, 0), c.id, c.state, coalesce(c.shards, 0), coalesce(r.shard, 0)
FROM old.message m
    LEFT JOIN old.lease l ON l.position = m.position
    LEFT JOIN old.claim_range r
        ON r.first = (SELECT max(first) FROM old.claim_range WHERE first <= m.position) AND r.last >= m.position
    LEFT JOIN old.claim c ON c.id = r.claim
WHERE m.position BETWEEN ?1 << 41 AND ((?1 + 1) << 41) - 1 ORDER BY m.position;

-- name: purged
-- Purged lanes with messages whose receipts may have ends that the event log must record.
SELECT lane.number, priority, kind = 2, logged_lane.queue, ended_at_ms
FROM old.logged_lane JOIN old.lane ON lane.number = logged_lane.lane WHERE lane.queue IS NULL ORDER BY lane.number;

-- name: attempts
SELECT key, taken, attempted_at_ms FROM old.attempt;

-- name: queue_at
SELECT queue FROM old.lane WHERE number = ? AND queue IS NOT NULL;

-- name: publications
SELECT number, queue, writer, batch, stages, messages_per_s_max, next_at_ms FROM old.publication;

-- name: add_publication
INSERT INTO main.publication (number, qp, writer_id, batch, stages, messages_per_s_max, next_at)
VALUES (?1, coalesce((SELECT origin FROM main.queue WHERE queue_id = ?2), 0), ?3, ?4, ?5, ?6, ?7);

-- name: copy_tables
-- Tables that only differ in their columns. A claim without a source is deleted when it has ended; the numbers of lost claims
-- that the last acknowledgement skipped become ended claims. Expired receipts get the seq of their message, or keep the
-- position if it was deleted.
INSERT INTO main.accepted SELECT number, accepted_at_ms, entries FROM old.accepted;
INSERT INTO main.pause SELECT kind, name, began_at_ms FROM old.pause;
INSERT INTO main.topic SELECT number, name, settings, created_at_ms, modified_at_ms FROM old.topic;
INSERT INTO main.subscription
SELECT topic, name, content, push_queue IS NOT NULL, created_at_ms, modified_at_ms FROM old.subscription;
INSERT INTO main.move
SELECT
    number, id, queue, source, destination, moves_per_s_max, status, moved, to_move, started_at_ms, next_at_ms, failure, starter
FROM old.move_task;
INSERT INTO main.writer SELECT number, origin, w.name, batch, messages, duplicates, seen_at_ms
FROM old.writer w JOIN main.queue q ON q.queue_id = w.queue;
INSERT INTO main.stage SELECT number, writer, batch, attempt, messages, publication FROM old.stage;
INSERT INTO main.piece SELECT stage, part, place, messages, content FROM old.piece;
INSERT INTO main.source
SELECT origin, s.name, consumer, epoch, acknowledged, last, hold_s * 1000, lease_s * 1000, beat_at_ms, beat_at_ms
FROM old.source s JOIN main.queue q ON q.queue_id = s.queue;
INSERT INTO main.claim
SELECT
    id, origin, qp, reader, number, state, messages, max(shards, state = 'binding'), filled, bound_at_ms,
    state NOT IN ('binding', 'open'), remaining, NULL, ahead_ms
FROM (
    SELECT c.*, q.origin, q.qp, s.name AS reader, (
        SELECT coalesce(sum(r.messages), 0) FROM old.claim_range r JOIN old.lane l ON l.number = r.first >> 41
        WHERE r.claim = c.id AND l.queue IS NOT NULL
    ) AS remaining
    FROM old.claim c JOIN main.queue q ON q.queue_id = c.queue
        LEFT JOIN old.source s ON s.number = c.source AND c.state <> 'acknowledged'
) WHERE remaining > 0 OR reader IS NOT NULL;
UPDATE main.claim SET is_ending = 0 WHERE remaining = 0;
INSERT INTO main.claim (qp, part, source, number, state, shards, bound_at)
SELECT origin, qp, s.name, each.value, 'lost', 1, beat_at_ms
FROM old.source s JOIN main.queue q ON q.queue_id = s.queue CROSS JOIN json_each(s.lost) AS each
WHERE NOT EXISTS (SELECT 1 FROM main.claim c WHERE c.qp = q.origin AND c.source = s.name AND c.number = each.value);
INSERT INTO main.event_batch SELECT number, events, encoded FROM old.event_batch;
INSERT INTO main.expired_receipt SELECT e.number, coalesce(r.seq, e.position), generation, seen_at_ms, event
FROM old.expired_receipt e LEFT JOIN old.lane l ON l.number = e.position >> 41 LEFT JOIN old.logged_lane g ON g.lane = l.number
    LEFT JOIN main.queue q ON q.name = g.queue
    LEFT JOIN main.renumbered r ON r.queue_id = coalesce(l.queue, q.queue_id) AND r.position = e.position;
DELETE FROM main.sqlite_sequence WHERE name IN ('topic', 'move', 'writer', 'stage', 'publication');
INSERT INTO main.sqlite_sequence (name, seq)
SELECT iif(name = 'move_task', 'move', name), seq FROM old.sqlite_sequence
WHERE name IN ('topic', 'move_task', 'writer', 'stage', 'publication');
