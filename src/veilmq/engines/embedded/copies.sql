-- Copies of a stopped store (engines/copying.py): reading one, and filling another.

-- name: copied_messages
-- In order from a position (inclusive) to another (exclusive), with what is known of their receives.
SELECT
    message.position, message.id, message.body, message.properties, message.sent_at_ms, message.first_sent_at_ms,
    message.source, message.receives_before, message.first_received_at_ms, message.group_key, lease.visible_at_ms, lease.receive_count,
    lease.generation, lease.epoch, lease.received_at_ms, lease.first_received_at_ms, lease.log
FROM message LEFT JOIN lease ON lease.position = message.position
WHERE message.position >= ? AND message.position < ? ORDER BY message.position LIMIT ?;

-- name: copied_accepted
SELECT accepted_at_ms, entries FROM accepted WHERE accepted_at_ms > ? ORDER BY number;

-- name: copied_attempts
SELECT key, taken, attempted_at_ms FROM attempt;

-- name: copied_moves
SELECT
    number, id, queue, source, destination, moves_per_s_max, status, moved, to_move, started_at_ms, next_at_ms, failure, starter
FROM move_task ORDER BY number;

-- name: copied_pauses
SELECT kind, name, began_at_ms FROM pause ORDER BY began_at_ms;

-- name: copied_topics
SELECT number, name, settings, created_at_ms, modified_at_ms FROM topic ORDER BY number;

-- name: copied_subscriptions
SELECT topic, name, content, push_queue IS NOT NULL, created_at_ms, modified_at_ms FROM subscription ORDER BY topic, name;

-- name: add_topic
INSERT INTO topic (number, name, settings, created_at_ms, modified_at_ms) VALUES (?, ?, ?, ?, ?);

-- name: add_subscription
INSERT INTO subscription (topic, name, content, push_queue, created_at_ms, modified_at_ms) VALUES (?, ?, ?, ?, ?, ?);

-- name: last_number
SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'queue';

-- name: stored_tables
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name;

-- name: add_queue
INSERT INTO queue (number, name, settings, created_at_ms, modified_at_ms) VALUES (?, ?, ?, ?, ?);

-- name: add_move
INSERT INTO move_task
    (number, id, queue, source, destination, moves_per_s_max, status, moved, to_move, started_at_ms, next_at_ms, failure, starter)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: number_behind
-- The next queue gets a higher number than this one.
INSERT INTO sqlite_sequence (name, seq) VALUES ('queue', ?);

-- name: drop_numbers
DELETE FROM sqlite_sequence WHERE name = 'queue';

-- name: lease_before_leased
-- Without groups, messages are received in order: whatever stands before one that has a lease gets one, too.
INSERT INTO lease (position, lane, visible_at_ms, receive_count, generation, epoch, received_at_ms, first_received_at_ms)
SELECT position, ?1, sent_at_ms, 0, 0, 0, 0, 0 FROM message
WHERE position >= ?2 AND position < (SELECT max(position) FROM lease WHERE position >= ?2 AND position < ?3)
AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.position = message.position);

-- name: turns_in_order
-- Of each group of a FIFO queue: the end of its leases or the first instant of its messages, where those begin that were
-- never given, and the first.
INSERT INTO turn (lane, group_key, visible_at_ms, next_position, head_position)
SELECT
    ?1, message.group_key,
    coalesce(
        max(CASE WHEN receive_count > 0 THEN lease.visible_at_ms END), min(coalesce(lease.visible_at_ms, sent_at_ms))
    ),
    coalesce(max(CASE WHEN receive_count > 0 THEN message.position END) + 1, min(message.position)),
    min(message.position)
FROM message LEFT JOIN lease ON lease.position = message.position
WHERE message.position >= ?2 AND message.position < ?3 GROUP BY message.group_key;

-- name: turns_by_fairness
-- Of each group of a fair queue that has messages never received: the first of them.
INSERT INTO turn (lane, group_key, visible_at_ms, next_position, head_position)
SELECT ?1, group_key, sent_at_ms, min(position), min(position) FROM message
WHERE position >= ?2 AND position < ?3 AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.position = message.position)
GROUP BY group_key;

-- name: count_leased
SELECT coalesce(sum(receive_count > 0), 0), coalesce(sum(receive_count = 0), 0)
FROM lease WHERE lane = ? AND visible_at_ms > ?;
