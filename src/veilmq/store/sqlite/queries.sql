-- name: queue_by_name
SELECT q.queue_id, q.name, q.settings, q.created_at, q.modified_at, q.origin, p.qp, p.messages, p.in_flight, p.delayed,
       p.counted_at, p.floor_seq, EXISTS (SELECT 1 FROM claim WHERE part = p.qp)
FROM queue q JOIN part p ON p.qp = q.qp WHERE q.name = ?;

-- name: queue_sources
SELECT name FROM queue WHERE dead_letter_queue = ? AND dead_letter_queue <> '' AND name > ? ORDER BY name LIMIT ?;

-- name: retired_parts
SELECT qp, log_queue, retired_at FROM part INDEXED BY part_retired WHERE retired ORDER BY qp LIMIT ?;

-- name: delete_part
DELETE FROM part WHERE qp = ?;

-- name: put_totals
UPDATE part SET messages = ?, in_flight = ?, delayed = ?, counted_at = ?, floor_seq = ?, last_seq = ? WHERE qp = ?;

-- name: first_lane_after
SELECT min(lane) FROM (
    SELECT min(lane) AS lane FROM visibility INDEXED BY visible WHERE partition = ?1 AND lane > ?2
    UNION ALL SELECT min(lane) FROM ready WHERE partition = ?1 AND lane > ?2
);

-- name: progress
SELECT max(last_instant_ms, coalesce((SELECT max(counted_at) FROM part), 0)),
       max(last_seq, coalesce((SELECT max(last_seq) FROM part), 0)), mark FROM progress;

-- name: put_progress
UPDATE progress SET last_instant_ms = ?, last_seq = ?;

-- name: put_mark
UPDATE progress SET mark = ?;

-- Parts of statements. A name in braces is replaced by a text from above.

-- name: candidate
o.receive_count, o.epoch, o.first_received_at, m.id, m.body, m.properties, m.source, m.receives_before, m.first_received_at_ms,
m.grp;

-- name: ordered_message
message m CROSS JOIN ordered o ON o.partition = ?1 AND o.grp = m.grp AND o.seq = m.seq;

-- Messages of standard queues.

-- name: insert_message
INSERT INTO message (seq, grp, id, properties, body) VALUES (?, ?, ?, ?, ?);

-- name: delete_message
DELETE FROM message WHERE seq = ?;

-- name: standard_insert
INSERT INTO visibility VALUES (?, ?, ?, ?, ?, 0, 0, 0, NULL, NULL, 0);

-- name: insert_ready
INSERT INTO ready (partition, lane, last_seq, first_seq) VALUES (?, ?, ?, ?);

-- name: ready_take
-- The ready list from the seq ?1 on, up to the first message that returned by ?4; columns as in standard_take, without an epoch.
SELECT m.seq, r.lane, 0, NULL, NULL,
       m.id, m.body, m.properties, m.source, m.receives_before, m.first_received_at_ms, m.grp, m.seq >> 20
FROM ready r CROSS JOIN message m ON m.seq BETWEEN max(r.first_seq, ?1) AND r.last_seq
WHERE r.partition = ?2 AND r.lane = ?3 AND r.last_seq >= ?1 AND r.last_seq < coalesce((
    SELECT v.visible_at << 20 FROM visibility v INDEXED BY visible
    WHERE v.partition = ?2 AND v.lane = ?3 AND v.visible_at <= ?4 ORDER BY v.visible_at LIMIT 1
), ~(1 << 63)) ORDER BY r.last_seq LIMIT ?5;

-- name: split_ready
-- The messages of the run before a given one become a separate run.
INSERT INTO ready (partition, lane, last_seq, first_seq) SELECT partition, lane, ?3 - 1, first_seq
FROM (SELECT * FROM ready WHERE partition = ?1 AND lane = ?2 AND last_seq >= ?3 ORDER BY last_seq LIMIT 1)
WHERE first_seq < ?3;

-- name: remove_ready_runs
-- Runs that end between two messages; shorten_ready_run shortens the run that continues after them.
DELETE FROM ready WHERE partition = ? AND lane = ? AND last_seq BETWEEN ? AND ?;

-- name: shorten_ready_run
UPDATE ready SET first_seq = ?3 + 1
WHERE partition = ?1 AND lane = ?2 AND first_seq <= ?3
    AND last_seq = (SELECT min(last_seq) FROM ready WHERE partition = ?1 AND lane = ?2 AND last_seq > ?3);

-- name: lease_ready
-- The first receive, at ?2, of messages of the ready list from ?3 to ?4.
INSERT INTO visibility SELECT ?1, seq, ?5, ?6, NULL, 1, ?7, 1, ?8, ?2, ?9 FROM message WHERE seq BETWEEN ?3 AND ?4;

-- name: standard_take
SELECT o.seq, o.lane, {candidate}, o.visible_at
FROM visibility o INDEXED BY visible CROSS JOIN message m ON m.seq = o.seq
WHERE o.partition = ? AND o.lane = ? AND o.visible_at <= ? ORDER BY o.visible_at, o.seq LIMIT ?;

-- name: renumber_message
UPDATE message
SET seq = ?, grp = ?, id = ?, properties = ?, source = ?, receives_before = ?, first_received_at_ms = ?, moved_at_ms = ?
WHERE seq = ?;

-- name: standard_count_due
SELECT count(*), coalesce(sum(receive_count > 0), 0) FROM visibility INDEXED BY visible
WHERE partition = ? AND lane = ? AND visible_at > ? AND visible_at <= ?;

-- name: standard_ends_after
-- Leases and delays, ordered by their ends.
SELECT visible_at, receive_count, seq, lane FROM visibility INDEXED BY visible
WHERE partition = ? AND lane = ? AND visible_at > ? ORDER BY visible_at, seq LIMIT ?;

-- name: standard_hidden
-- Unexpired ones among them that were received, or not (?5). SQL skips the others, because the loop waits for this.
SELECT visible_at, seq, lane FROM ({standard_ends_after}) WHERE (receive_count > 0) = ?5 AND seq >= ?6 LIMIT ?7;

-- name: standard_between
SELECT seq, lane, grp, visible_at, receive_count FROM visibility
WHERE partition = ? AND seq BETWEEN ? AND ? ORDER BY seq LIMIT ?;

-- name: admit_fair_group
INSERT INTO fair_group (partition, lane, grp, head_at, head_seq) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (partition, lane, grp) DO UPDATE SET head_at = excluded.head_at, head_seq = excluded.head_seq
WHERE (excluded.head_at, excluded.head_seq) < (head_at, head_seq);

-- name: put_fair_group
-- The first message of a group.
INSERT OR REPLACE INTO fair_group (partition, lane, grp, head_at, head_seq)
SELECT partition, lane, grp, visible_at, seq FROM visibility INDEXED BY visible_of_group
WHERE partition = ? AND lane = ? AND grp = ? AND grp IS NOT NULL ORDER BY visible_at, seq LIMIT 1
RETURNING head_at, head_seq;

-- name: delete_fair_group
DELETE FROM fair_group WHERE partition = ? AND lane = ? AND grp = ?;

-- name: fair_groups
SELECT head_at, head_seq, grp FROM fair_group INDEXED BY fair_head
WHERE partition = ? AND lane = ? AND head_at <= ? ORDER BY head_at, head_seq;

-- name: fair_of_group
SELECT o.seq, o.lane, {candidate}, o.visible_at
FROM visibility o INDEXED BY visible_of_group CROSS JOIN message m ON m.seq = o.seq
WHERE o.partition = ? AND o.lane = ? AND o.grp = ? AND o.grp IS NOT NULL AND o.visible_at <= ?
ORDER BY o.visible_at, o.seq;

-- name: fair_leases
-- The leases of groups, only those that end last if there are very many.
SELECT seq, visible_at, grp, received_at FROM visibility INDEXED BY visible
WHERE partition = ? AND lane = ? AND visible_at > ? AND receive_count > 0 ORDER BY visible_at DESC LIMIT ?;

-- name: delete_fair_groups_of
DELETE FROM fair_group
WHERE partition = ?1 AND (lane, grp) IN (SELECT lane, grp FROM fair_group WHERE partition = ?1 LIMIT ?2);

-- Messages of FIFO queues.

-- name: ordered_insert
INSERT INTO ordered (partition, grp, seq, visible_at, apart) VALUES (?1, ?2, ?3, ?4, ?4 IS NOT NULL);

-- name: insert_ordered_run
INSERT INTO ordered_run (partition, last_seq, first_seq, messages) VALUES (?, ?, ?, ?);

-- name: ordered_run
SELECT last_seq, messages FROM ordered_run WHERE partition = ? AND last_seq >= ? ORDER BY last_seq LIMIT 1;

-- name: shrink_ordered_run
UPDATE ordered_run SET messages = messages - ? WHERE partition = ? AND last_seq = ?;

-- name: delete_ordered_run
DELETE FROM ordered_run WHERE partition = ? AND last_seq = ?;

-- name: ordered_take
-- Unexpired messages that the group can deliver, in order; delayed messages are skipped.
SELECT o.seq, 8, {candidate}, o.visible_at
FROM (
    SELECT seq, visible_at, receive_count, epoch, first_received_at FROM ordered
    WHERE partition = ? AND grp = ? AND seq >= ? ORDER BY seq LIMIT ?
) o CROSS JOIN message m ON m.seq = o.seq
WHERE coalesce(o.visible_at, (o.seq >> 20) + ?) <= ? ORDER BY o.seq LIMIT ?;

-- name: group_of_message
SELECT seq, grp FROM message WHERE seq = ?;

-- name: ordered_set_apart
UPDATE ordered SET apart = ? WHERE partition = ? AND grp = ? AND seq = ?;

-- name: end_group
DELETE FROM ordered WHERE partition = ?1 AND grp = ?2 AND seq = 0
    AND NOT EXISTS (SELECT 1 FROM ordered WHERE partition = ?1 AND grp = ?2 AND seq > 0);

-- name: ordered_first_of_group
SELECT c.grp, c.received_to, c.own_to, o.seq, o.visible_at
FROM ordered c CROSS JOIN ordered o ON o.partition = c.partition AND o.grp = c.grp AND o.seq > 0
WHERE c.partition = ? AND c.grp = ? AND c.seq = 0 ORDER BY o.seq LIMIT 1;

-- name: ordered_of_group
SELECT seq, visible_at, receive_count, apart FROM ordered WHERE partition = ? AND grp = ? AND seq > 0 ORDER BY seq;

-- name: ordered_count_due
SELECT apart + counted, received + counted
FROM (
    SELECT count(*) AS apart, coalesce(sum(receive_count > 0), 0) AS received FROM ordered INDEXED BY ordered_apart
    WHERE partition = ?1 AND apart = 1 AND visible_at > ?2 AND visible_at <= ?3
), (
    SELECT coalesce(sum(in_flight), 0) AS counted FROM ordered INDEXED BY group_due
    WHERE partition = ?1 AND seq = 0 AND fixed_at > ?2 AND fixed_at <= ?3
);

-- name: ordered_ends_after
-- The same, and when groups with nothing in flight become ready.
SELECT visible_at, receive_count FROM ordered INDEXED BY ordered_apart
WHERE partition = ?1 AND apart = 1 AND visible_at > ?2
UNION ALL SELECT fixed_at, in_flight FROM ordered INDEXED BY group_due
WHERE partition = ?1 AND seq = 0 AND fixed_at > ?2 ORDER BY 1 LIMIT ?3;

-- name: ordered_between
-- As standard_between, without claimed messages.
SELECT o.seq, 8, o.grp, o.visible_at, o.receive_count
FROM ordered_run r CROSS JOIN message m ON m.seq BETWEEN max(r.first_seq, ?2) AND min(r.last_seq, ?3)
    CROSS JOIN ordered o ON o.partition = r.partition AND o.grp = m.grp AND o.seq = m.seq
WHERE r.partition = ?1 AND r.last_seq >= ?2 AND r.last_seq <= coalesce(
    (SELECT min(last_seq) FROM ordered_run WHERE partition = ?1 AND last_seq >= ?3), ?3
) AND o.visible_at IS NOT 4611686018427387903 ORDER BY r.last_seq LIMIT ?4;

-- name: ordered_waiting
SELECT count(*) FROM ({ordered_between}) WHERE visible_at IS NULL;

-- name: ordered_visible
-- Those visible at ?6, where ?5 is the queue's delay; ?7: only those that follow this delay.
SELECT seq, NULL FROM ({ordered_between})
WHERE coalesce(visible_at, (seq >> 20) + ?5) <= ?6 AND (visible_at IS NULL OR NOT ?7) LIMIT ?8;

-- name: ordered_hidden
-- As standard_hidden, without messages that their groups count; reads the first ?4 that are hidden until ?3 at the latest.
SELECT visible_at, seq, NULL FROM (
    SELECT visible_at, receive_count, seq FROM ordered INDEXED BY ordered_apart
    WHERE partition = ?1 AND apart = 1 AND visible_at > ?2 AND visible_at <= ?3 ORDER BY visible_at LIMIT ?4
) WHERE (receive_count > 0) = ?5 AND seq >= ?6 LIMIT ?7;

-- name: ordered_in_flight
-- Messages in flight of the first ?3 blocked groups, hidden until these become ready.
SELECT o.visible_at, o.seq, NULL
FROM (
    SELECT grp, fixed_at, in_flight FROM ordered INDEXED BY group_due
    WHERE partition = ?1 AND seq = 0 AND fixed_at > ?2 AND fixed_at < 4611686018427387903
    ORDER BY fixed_at, head_seq LIMIT ?3
) w CROSS JOIN ordered c ON c.partition = ?1 AND c.grp = w.grp AND c.seq = 0
    CROSS JOIN ordered o ON o.partition = ?1 AND o.grp = c.grp AND o.seq BETWEEN c.head_seq AND c.received_to
WHERE w.in_flight > 0 AND o.visible_at = w.fixed_at AND o.receive_count > 0 AND NOT o.apart AND o.seq >= ?4 LIMIT ?5;

-- name: standard_stored
-- The columns of StoredMessage; ?3 is the lane of a message of the ready list. No receipt has the generation of a claimed one.
SELECT m.seq, m.id, m.properties, octet_length(m.body), (coalesce(v.lane, c.lane, ?3) - 1) % 16 + 1, m.source, m.seq >> 20,
       coalesce(v.visible_at, m.seq >> 20), coalesce(v.receive_count, c.receive_count, 0),
       coalesce(m.receives_before, 0), coalesce(v.generation, -(k.claim_id IS NOT NULL)), coalesce(v.epoch, 0),
       coalesce(v.received_at, k.bound_at, 0),
       coalesce(m.first_received_at_ms, v.first_received_at), coalesce(v.log, 0), k.claim_id IS NOT NULL AS is_claimed
FROM message m LEFT JOIN visibility v ON v.partition = ?1 AND v.seq = m.seq
    LEFT JOIN claimed c ON c.partition = ?1 AND c.first_seq <= m.seq AND c.last_seq = (
        SELECT min(last_seq) FROM claimed WHERE partition = ?1 AND last_seq >= m.seq
    )
    LEFT JOIN claim k ON k.claim_id = c.claim_id WHERE m.seq = ?2 AND coalesce(v.lane, c.lane, ?3) IS NOT NULL;

-- name: ordered_stored
-- The same; ?3 is the queue's delay.
SELECT m.seq, m.id, m.properties, octet_length(m.body), 8, m.source, m.seq >> 20, coalesce(o.visible_at, (m.seq >> 20) + ?3),
       o.receive_count, coalesce(m.receives_before, 0), o.generation, o.epoch, coalesce(o.received_at, 0),
       coalesce(m.first_received_at_ms, o.first_received_at), o.log, o.visible_at IS 4611686018427387903 AS is_claimed
FROM {ordered_message} WHERE m.seq = ?2;

-- Groups of FIFO queues.

-- name: admit_group
-- A new message that follows the queue's delay; nothing changes while a received message blocks the group.
INSERT INTO ordered (partition, grp, seq, head_seq, floating_seq, received_to, own_to, in_flight)
VALUES (?, ?, 0, ?3, ?3, 0, 0, 0) ON CONFLICT (partition, grp, seq) DO UPDATE SET floating_seq = excluded.floating_seq
WHERE received_to = 0 AND floating_seq IS NULL;

-- name: admit_delayed
-- New messages with their own delay, the last of which is ?3; the cursor needs an update.
INSERT INTO ordered (partition, grp, seq, head_seq, received_to, own_to, in_flight) VALUES (?, ?, 0, 0, 0, ?3, 0)
ON CONFLICT (partition, grp, seq) DO UPDATE SET own_to = excluded.own_to;

-- name: block_group
UPDATE ordered SET fixed_at = ?, head_seq = ?, floating_seq = NULL, received_to = max(received_to, ?), in_flight = ?
WHERE partition = ? AND grp = ? AND seq = 0;

-- name: put_group_cursor
INSERT OR REPLACE INTO ordered (partition, grp, seq, fixed_at, head_seq, floating_seq, received_to, own_to, in_flight)
VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?);

-- name: groups_fixed
SELECT fixed_at, head_seq, grp FROM ordered INDEXED BY group_due
WHERE partition = ? AND seq = 0 AND fixed_at <= ? ORDER BY fixed_at, head_seq LIMIT ?;

-- name: groups_floating
SELECT head_seq, grp FROM ordered INDEXED BY group_due
WHERE partition = ?1 AND seq = 0 AND fixed_at IS NULL AND head_seq < ?2
UNION ALL
SELECT floating_seq, grp FROM ordered INDEXED BY group_also_floating
WHERE partition = ?1 AND seq = 0 AND fixed_at IS NOT NULL AND floating_seq < ?2 ORDER BY 1 LIMIT ?3;

-- name: group_number
SELECT number FROM message_group WHERE partition = ? AND hash = ?;

-- name: group_hash
SELECT hash FROM message_group WHERE partition = ? AND number = ?;

-- name: insert_group_number
INSERT INTO message_group (partition, hash, number) VALUES (?, ?, ?);

-- name: group_numbers_after
-- A slice of the numbers, and whether each group has messages.
SELECT g.partition, g.hash, EXISTS (
    SELECT 1 FROM ordered c WHERE c.partition = g.partition AND c.grp = g.number AND c.seq = 0
) FROM message_group g WHERE (g.partition, g.hash) > (?, ?) ORDER BY g.partition, g.hash LIMIT ?;

-- name: delete_group_number
DELETE FROM message_group WHERE partition = ? AND hash = ?;

-- name: delete_cursors_of
DELETE FROM ordered WHERE partition = ?1 AND seq = 0
    AND grp IN (SELECT grp FROM ordered INDEXED BY group_due WHERE partition = ?1 AND seq = 0 LIMIT ?2);

-- name: event_state
-- The last assigned number, and the progress of the export.
SELECT max(exported, coalesce((SELECT number + events - 1 FROM event_batch ORDER BY number DESC LIMIT 1), 0)),
       planned, exported, dropped FROM event_state;

-- name: drop_events
UPDATE event_state SET dropped = dropped + ?;

-- name: insert_expired
INSERT INTO expired_receipt (seq, generation, seen_at, event) VALUES (?, ?, ?, ?);

-- name: take_expired
DELETE FROM expired_receipt WHERE seq = ? AND generation = ? RETURNING event;

-- name: delete_old_receipts
-- A slice of those recorded up to an instant, or older than the given number of latest ones.
DELETE FROM expired_receipt WHERE number IN (
    SELECT number FROM (SELECT number, seen_at FROM expired_receipt ORDER BY number LIMIT ?)
    WHERE seen_at <= ? OR number <= (SELECT max(number) FROM expired_receipt) - ?
) RETURNING 1;

-- name: attempt
SELECT taken, attempted_at_ms FROM attempt WHERE key = ?;

-- name: put_attempt
INSERT OR REPLACE INTO attempt (key, taken, attempted_at_ms) VALUES (?, ?, ?);

-- name: old_attempts
DELETE FROM attempt WHERE key IN (SELECT key FROM attempt WHERE attempted_at_ms <= ? ORDER BY attempted_at_ms LIMIT ?);

-- name: body
SELECT seq, body FROM message WHERE seq = ?;

-- name: insert_accepted
INSERT INTO accepted (number, accepted_at_ms, entries) VALUES (?, ?, ?);

-- name: accepted_from
SELECT number, accepted_at_ms, entries FROM accepted WHERE number >= ? ORDER BY number LIMIT ?;

-- name: accepted_row
SELECT number, accepted_at_ms, entries FROM accepted WHERE number <= ? ORDER BY number DESC LIMIT 1;

-- name: delete_accepted
-- At most ?2 of the oldest rows, up to an instant.
DELETE FROM accepted
WHERE number IN (SELECT number FROM accepted ORDER BY number LIMIT ?2) AND accepted_at_ms <= ?1 RETURNING 1;

-- name: insert_publication
INSERT INTO publication (qp, writer_id, batch, stages, messages_per_s_max, next_at)
VALUES (?, ?, ?, ?, ?, ?) RETURNING number;

-- name: put_publication
UPDATE publication SET stages = ?2, next_at = ?3 WHERE number = ?1;

-- Claimed messages. Those of a FIFO queue have visible_at = NEVER_MS.

-- name: ready_runs
SELECT first_seq, last_seq FROM ready WHERE partition = ? AND lane = ? AND last_seq >= ? ORDER BY last_seq LIMIT ?;

-- name: message_sizes
SELECT seq, octet_length(body) + length(properties) FROM message WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?;

-- name: insert_claimed
INSERT INTO claimed VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: claim_columns
SELECT bytes, ahead FROM claim WHERE claim_id = ?;

-- name: grow_claim
UPDATE claim SET remaining = remaining + ?1, bytes = bytes + ?2, ahead = coalesce(?3, ahead) WHERE claim_id = ?4;

-- name: claimed_count
-- How many messages of a partition are claimed, or still to be returned.
SELECT coalesce(sum(remaining), 0) FROM claim WHERE part = ? AND state <> 'acknowledged';

-- name: claimed_from
-- Messages that are claimed, or still to be returned, in sending order.
SELECT m.seq, c.lane FROM claimed c CROSS JOIN message m ON m.seq BETWEEN c.first_seq AND c.last_seq
WHERE c.partition = ?1 AND c.claim_id NOT IN (SELECT claim_id FROM claim WHERE part = ?1 AND state = 'acknowledged')
ORDER BY c.last_seq LIMIT ?2;

-- name: read_claimed
SELECT m.seq, m.id, m.body, m.properties, c.receive_count + coalesce(m.receives_before, 0)
FROM claimed c INDEXED BY claimed_of CROSS JOIN message m ON m.seq BETWEEN max(c.first_seq, ?3) AND c.last_seq
WHERE c.claim_id = ?1 AND c.shard = ?2 AND c.last_seq >= ?3 ORDER BY c.last_seq LIMIT ?4;

-- name: find_claimed
-- Finds a message by id in a claim (?2).
SELECT m.seq FROM claimed c INDEXED BY claimed_of CROSS JOIN message m ON m.seq BETWEEN c.first_seq AND c.last_seq
WHERE c.claim_id = ?2 AND m.id = ?3 LIMIT 1;

-- name: claimed_of
-- With the size of a body to be deleted (?3); the sizes of a run are read separately.
SELECT last_seq, first_seq, lane, grp, receive_count, epoch, first_received_at, shard,
       CASE WHEN ?3 AND first_seq = last_seq THEN (SELECT octet_length(body) FROM message WHERE seq = last_seq) END
FROM claimed INDEXED BY claimed_of WHERE claim_id = ?1 ORDER BY shard, last_seq LIMIT ?2;

-- name: claimed_at
-- The run that contains a seq, or the next one.
SELECT last_seq, first_seq, lane, grp, receive_count, epoch, first_received_at, shard FROM claimed
WHERE partition = ? AND last_seq >= ? ORDER BY last_seq LIMIT 1;

-- name: delete_claimed
DELETE FROM claimed WHERE partition = ? AND last_seq = ?;

-- name: delete_messages
DELETE FROM message WHERE seq BETWEEN ? AND ?;

-- name: return_claimed
-- Claimed messages from ?5 to ?6 become visible at ?2, with the generation ?3 and received at ?4.
INSERT INTO visibility SELECT ?1, seq, ?7, ?2, ?8, ?9, ?3, ?10, ?4, ?11, 0 FROM message WHERE seq BETWEEN ?5 AND ?6;

-- name: grow_ordered_run
UPDATE ordered_run SET messages = messages + 1 WHERE partition = ?1 AND first_seq <= ?2
    AND last_seq = (SELECT min(last_seq) FROM ordered_run WHERE partition = ?1 AND last_seq >= ?2);
