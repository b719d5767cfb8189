-- name: insert_events
INSERT INTO event_batch (number, events, encoded) VALUES (?, ?, ?);

-- name: last_events
SELECT number + events FROM event_batch ORDER BY number DESC LIMIT 1;

-- name: events_before
-- Where a range ends that is to end before a number: at the end of a batch.
SELECT number + events - 1 FROM event_batch WHERE number < ? ORDER BY number DESC LIMIT 1;

-- name: events_between
SELECT number, events, encoded FROM event_batch WHERE number >= ? AND number <= ? ORDER BY number;

-- name: delete_events
-- A slice of the batches that begin at a number or before it.
DELETE FROM event_batch WHERE number IN (SELECT number FROM event_batch WHERE number <= ? ORDER BY number LIMIT ?)
RETURNING 1;

-- name: insert_expired
INSERT INTO expired_receipt (position, generation, seen_at_ms, event) VALUES (?, ?, ?, ?);

-- name: take_expired
DELETE FROM expired_receipt WHERE position = ? AND generation = ? RETURNING event;

-- name: first_expired
SELECT number, seen_at_ms FROM expired_receipt ORDER BY number LIMIT ?;

-- name: last_expired
SELECT number FROM expired_receipt ORDER BY number DESC LIMIT 1;

-- name: delete_expired
DELETE FROM expired_receipt WHERE number <= ?;

-- name: open_receipts
-- The receipts among a slice's leases of which no end is recorded, with what an event says of their messages.
SELECT
    lease.position, lane, visible_at_ms, receive_count, generation, epoch, received_at_ms,
    lease.first_received_at_ms, lease.group_key, log,
    id, sent_at_ms, properties, octet_length(body), first_sent_at_ms
FROM lease JOIN message USING (position)
WHERE lease.position >= ? AND lease.position < ? AND log & 3 = 1;

-- name: close_receipt
UPDATE lease SET log = log | 2 WHERE position = ?;

-- name: put_logged_lane
INSERT OR REPLACE INTO logged_lane (lane, queue, ended_at_ms) VALUES (?, ?, ?);

-- name: logged_lanes
SELECT lane, queue, ended_at_ms FROM logged_lane;

-- name: delete_logged_lane
DELETE FROM logged_lane WHERE lane = ?;
