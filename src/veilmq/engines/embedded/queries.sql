-- name: insert_message
INSERT INTO message
    (position, id, sent_at_ms, body, properties, group_key, source, first_sent_at_ms,
     receives_before, first_received_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_lease
INSERT INTO lease
    (position, lane, visible_at_ms, receive_count, generation, epoch, received_at_ms, first_received_at_ms, group_key,
     log)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: put_lease
INSERT INTO lease
    (position, lane, visible_at_ms, receive_count, generation, epoch, received_at_ms, first_received_at_ms, group_key,
     log)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (position) DO UPDATE SET
    visible_at_ms = excluded.visible_at_ms,
    receive_count = excluded.receive_count,
    generation = excluded.generation,
    epoch = excluded.epoch,
    received_at_ms = excluded.received_at_ms,
    first_received_at_ms = excluded.first_received_at_ms,
    log = excluded.log;

-- name: groups_without_turn
-- Of the small messages in a stretch, the groups that have no turn: the first message, and where those received end.
-- (To know the group of a large message, all its pages would be read.)
SELECT key, min(position), max(CASE WHEN receive_count > 0 THEN position + 1 ELSE 0 END)
FROM (
    SELECT
        message.position AS position, receive_count,
        CASE WHEN octet_length(body) <= 4000 AND length(properties) <= 1000 THEN message.group_key END AS key
    FROM message LEFT JOIN lease ON lease.position = message.position
    WHERE message.position >= ?1 AND message.position < ?2
)
WHERE key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM turn WHERE turn.lane = ?3 AND turn.group_key = key)
GROUP BY key ORDER BY 2;

-- name: put_turn
INSERT INTO turn (lane, group_key, visible_at_ms, next_position, head_position) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (lane, group_key) DO UPDATE SET
    visible_at_ms = excluded.visible_at_ms,
    next_position = excluded.next_position,
    head_position = excluded.head_position;

-- name: delete_turn
DELETE FROM turn WHERE lane = ? AND group_key = ?;

-- name: turn_at
SELECT visible_at_ms, next_position, head_position FROM turn WHERE lane = ? AND group_key = ?;

-- name: turns_at_instant
SELECT group_key, visible_at_ms, next_position, head_position
FROM turn WHERE lane = ? AND visible_at_ms = ? AND head_position > ? ORDER BY head_position LIMIT ?;

-- name: turns_after_instant
SELECT group_key, visible_at_ms, next_position, head_position
FROM turn WHERE lane = ? AND visible_at_ms > ? ORDER BY visible_at_ms, head_position LIMIT ?;

-- name: delete_turns_of
DELETE FROM turn WHERE lane = ?1 AND group_key IN (SELECT group_key FROM turn WHERE lane = ?1 LIMIT ?2) RETURNING 1;

-- name: group_messages
-- The messages of a group in order, with the instant at which the delay of those sent with one ends.
SELECT lease.visible_at_ms, message.*
FROM message INDEXED BY message_group LEFT JOIN lease ON lease.position = message.position
WHERE message.group_key = ? AND message.position >= ? AND message.position < ?
ORDER BY message.position LIMIT ?;

-- name: group_leases
-- The leases of a group's messages, and made-up ones of those that have none: with 0, and with when they were sent.
SELECT
    message.position, message.position >> 41, coalesce(visible_at_ms, 0), coalesce(receive_count, 0),
    coalesce(generation, 0), coalesce(epoch, 0), coalesce(received_at_ms, sent_at_ms),
    coalesce(lease.first_received_at_ms, 0), message.group_key, coalesce(lease.log, 0)
FROM message INDEXED BY message_group LEFT JOIN lease ON lease.position = message.position
WHERE message.group_key = ? AND message.position >= ? AND message.position < ?;

-- name: waiting_between
-- Messages in order, whether they have leases.
SELECT message.position, sent_at_ms, lease.position IS NOT NULL
FROM message LEFT JOIN lease ON lease.position = message.position
WHERE message.position >= ? AND message.position < ? ORDER BY message.position LIMIT ?;

-- name: groups_between
SELECT position, group_key FROM message WHERE position >= ? AND position < ?;

-- name: insert_accepted
INSERT INTO accepted (number, accepted_at_ms, entries) VALUES (?, ?, ?);

-- name: all_accepted
SELECT number, entries FROM accepted ORDER BY number;

-- name: accepted_row
-- The row that has the entry of that number.
SELECT number, accepted_at_ms, entries FROM accepted WHERE number <= ? ORDER BY number DESC LIMIT 1;

-- name: old_accepted
-- Of the first so many rows, those accepted up to an instant.
SELECT number FROM (SELECT number, accepted_at_ms FROM accepted ORDER BY number LIMIT ?) WHERE accepted_at_ms <= ?;

-- name: delete_accepted
DELETE FROM accepted WHERE number <= ?;

-- name: first_accepted
SELECT number, accepted_at_ms FROM accepted ORDER BY number LIMIT 1;

-- name: put_attempt
INSERT OR REPLACE INTO attempt (key, taken, attempted_at_ms) VALUES (?, ?, ?);

-- name: delete_attempt
DELETE FROM attempt WHERE key = ?;

-- name: attempt_at
SELECT taken, attempted_at_ms FROM attempt WHERE key = ?;

-- name: attempts_after
SELECT key FROM attempt WHERE key > ? ORDER BY key LIMIT 1 OFFSET ?;

-- name: delete_old_attempts
DELETE FROM attempt WHERE key > ? AND key <= ? AND attempted_at_ms <= ?;

-- name: delete_message
DELETE FROM message WHERE position = ?;

-- name: delete_lease
DELETE FROM lease WHERE position = ?;

-- name: put_lane
INSERT OR REPLACE INTO lane
    (number, queue, priority, direct_floor, direct_next, delayed_floor, delayed_next,
     messages, in_flight, delayed, counted_at_ms, kind, sequence_base, dense)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete_lane
DELETE FROM lane WHERE number = ?;

-- name: insert_queue
INSERT INTO queue (name, settings, created_at_ms, modified_at_ms) VALUES (?, ?, ?, ?) RETURNING number;

-- name: update_queue
UPDATE queue SET settings = ?, modified_at_ms = ? WHERE number = ?;

-- name: delete_queue
DELETE FROM queue WHERE number = ?;

-- name: put_pause
INSERT OR REPLACE INTO pause (kind, name, began_at_ms) VALUES (?, ?, ?);

-- name: delete_pause
DELETE FROM pause WHERE kind = ? AND name = ?;

-- name: pauses_of
SELECT name, began_at_ms FROM pause WHERE kind = ? ORDER BY began_at_ms;

-- name: put_meta
INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?);

-- name: all_meta
SELECT name, value FROM meta;

-- name: all_queues
SELECT number, name, settings, created_at_ms, modified_at_ms FROM queue ORDER BY number;

-- name: all_lanes
SELECT
    number, queue, priority, direct_floor, direct_next, delayed_floor, delayed_next,
    messages, in_flight, delayed, counted_at_ms, kind, sequence_base, dense
FROM lane ORDER BY number;

-- name: messages_between
-- In order from a position (inclusive) to another (exclusive).
SELECT
    position, id, sent_at_ms, body, properties, group_key, source, first_sent_at_ms,
    receives_before, first_received_at_ms
FROM message WHERE position >= ? AND position < ? ORDER BY position LIMIT ?;

-- name: message_at
SELECT
    position, id, sent_at_ms, body, properties, group_key, source, first_sent_at_ms,
    receives_before, first_received_at_ms
FROM message WHERE position = ?;

-- name: first_sent_between
SELECT position, sent_at_ms FROM message WHERE position >= ? AND position < ? ORDER BY position LIMIT 1;

-- name: lease_at
SELECT
    position, lane, visible_at_ms, receive_count, generation, epoch, received_at_ms, first_received_at_ms, group_key,
    log
FROM lease WHERE position = ?;

-- name: leases_at_instant
-- The hidden messages of a lane that become visible at one instant, behind a position. Two queries, this one and the
-- next, because SQLite does not seek on both columns of a row-value comparison with the rowid. What is past its
-- retention in either half of the lane is stepped over here, in the index.
SELECT
    position, lane, visible_at_ms, receive_count, generation, epoch, received_at_ms, first_received_at_ms, group_key,
    log
FROM lease WHERE lane = ? AND visible_at_ms = ? AND position > ?
AND ((position >= ? AND position < ?) OR position >= ?)
ORDER BY position LIMIT ?;

-- name: leases_after_instant
SELECT
    position, lane, visible_at_ms, receive_count, generation, epoch, received_at_ms, first_received_at_ms, group_key,
    log
FROM lease WHERE lane = ? AND visible_at_ms > ?
AND ((position >= ? AND position < ?) OR position >= ?)
ORDER BY visible_at_ms, position LIMIT ?;

-- name: last_lease_between
SELECT position FROM lease WHERE position >= ? AND position < ? ORDER BY position DESC LIMIT 1;

-- name: last_claimed_between
SELECT last FROM claim_range WHERE first >= ? AND first < ? ORDER BY first DESC LIMIT 1;

-- name: count_due
-- How many hidden messages of a lane became visible in (after, until], and how many of them had been received.
SELECT count(*), coalesce(sum(receive_count > 0), 0)
FROM lease WHERE lane = ? AND visible_at_ms > ? AND visible_at_ms <= ?;

-- name: ends_after
-- The hidden messages of a lane in the order in which they become visible, so many as a look may step over.
SELECT visible_at_ms, receive_count
FROM lease WHERE lane = ? AND visible_at_ms > ? ORDER BY visible_at_ms, position LIMIT 1000;

-- name: position_after
-- The position that bounds a slice: the first one behind so many messages.
SELECT position FROM message WHERE position >= ? AND position < ? ORDER BY position LIMIT 1 OFFSET ?;

-- name: weight_between
-- How many messages there are, of which large ones count more: deleting one reads all of its pages.
SELECT coalesce(sum(1 + (octet_length(body) + length(properties)) / 16384), 0)
FROM message WHERE position >= ? AND position < ?;

-- name: position_after_weight
-- The first position behind messages that count for so much.
SELECT position FROM (
    SELECT position, sum(1 + (octet_length(body) + length(properties)) / 16384) OVER before AS weight
    FROM message WHERE position >= ?1 AND position < ?2
    WINDOW before AS (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) WHERE weight >= ?3 LIMIT 1;

-- name: count_hidden_between
-- Among a slice's leases, those still hidden at an instant: never received, and received and not claimed.
SELECT coalesce(sum(receive_count = 0), 0), coalesce(sum(receive_count > 0), 0)
FROM lease WHERE position >= ? AND position < ? AND visible_at_ms > ? AND visible_at_ms < 1 << 61;

-- name: delete_messages_between
DELETE FROM message WHERE position >= ? AND position < ?;

-- name: delete_leases_between
DELETE FROM lease WHERE position >= ? AND position < ?;

-- name: moved_until
-- Messages of a lane that were moved to it, first sent up to an instant, from a position (inclusive) to another one.
SELECT first_sent_at_ms, position FROM message
WHERE position >> 41 = ? AND first_sent_at_ms <= ? AND (first_sent_at_ms, position) > (?, ?)
AND position >= ? AND position < ? ORDER BY first_sent_at_ms, position LIMIT ?;

-- name: first_moved
SELECT first_sent_at_ms FROM message
WHERE position >> 41 = ? AND first_sent_at_ms IS NOT NULL AND (first_sent_at_ms > ? OR position >= ?)
ORDER BY first_sent_at_ms LIMIT 1;

-- name: insert_move
INSERT INTO move_task
    (id, queue, source, destination, moves_per_s_max, status, moved, to_move, started_at_ms, next_at_ms, failure, starter)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number;

-- name: update_move
UPDATE move_task SET status = ?, moved = ?, next_at_ms = ?, failure = ? WHERE number = ?;

-- name: running_moves
SELECT
    number, id, queue, source, destination, moves_per_s_max, status, moved, to_move, started_at_ms, next_at_ms, failure, starter
FROM move_task WHERE status = 'running' ORDER BY number;

-- name: moves_of
SELECT
    number, id, queue, source, destination, moves_per_s_max, status, moved, to_move, started_at_ms, next_at_ms, failure, starter
FROM move_task WHERE queue = ? ORDER BY number DESC LIMIT ?;

-- name: delete_older_moves
-- All tasks of a source but the latest so many.
DELETE FROM move_task WHERE queue = ?1 AND number <= (
    SELECT number FROM move_task WHERE queue = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2
);

-- name: delete_moves_of
DELETE FROM move_task WHERE queue = ?;

-- name: flights
-- What of a lane's groups is in flight: so many, those that land last, among so many hidden messages (delayed ones are
-- stepped over in the index).
SELECT lease.position, lease.visible_at_ms, lease.group_key, lease.received_at_ms
FROM (
    SELECT position AS at, receive_count AS receives
    FROM lease WHERE lane = ? AND visible_at_ms > ? AND visible_at_ms < ? ORDER BY visible_at_ms DESC LIMIT ?
) CROSS JOIN lease ON lease.position = at
WHERE receives > 0 LIMIT ?;

-- name: insert_writer
INSERT INTO writer (queue, name, seen_at_ms) VALUES (?, ?, ?) RETURNING number;

-- name: writer_at
SELECT number, name, batch, messages, duplicates, seen_at_ms FROM writer WHERE queue = ? AND name = ?;

-- name: writers_of
-- The writers of a queue, the latest first, with what each has staged and not published.
SELECT
    number, name, batch, messages, duplicates, seen_at_ms,
    (SELECT coalesce(sum(stage.messages), 0) FROM stage WHERE stage.writer = writer.number AND publication IS NULL)
FROM writer WHERE queue = ? ORDER BY seen_at_ms DESC, number DESC LIMIT ?;

-- name: see_writer
UPDATE writer SET seen_at_ms = ? WHERE number = ?;

-- name: publish_batch
UPDATE writer SET batch = ?, messages = ?, duplicates = 0, seen_at_ms = ? WHERE number = ?;

-- name: count_duplicates
UPDATE writer SET duplicates = duplicates + ? WHERE number = ? AND batch = ?;

-- name: first_seen
SELECT min(seen_at_ms) FROM writer;

-- name: silent_writers
SELECT number FROM writer WHERE seen_at_ms <= ? ORDER BY seen_at_ms LIMIT ?;

-- name: delete_writer
DELETE FROM writer WHERE number = ?;

-- name: delete_writers_of
DELETE FROM writer WHERE queue = ?;

-- name: insert_stage
INSERT INTO stage (writer, batch, attempt, messages) VALUES (?, ?, ?, 0) RETURNING number;

-- name: stage_at
SELECT number, messages FROM stage WHERE writer = ? AND batch = ? AND attempt = ? AND publication IS NULL;

-- name: stages_of
SELECT attempt, number, messages FROM stage WHERE writer = ? AND batch = ? AND publication IS NULL;

-- name: add_to_stage
UPDATE stage SET messages = messages + ? WHERE number = ?;

-- name: decide_stages
UPDATE stage SET publication = ?1
WHERE writer = ?2 AND batch >= ?3 AND batch <= ?4 AND publication IS NULL RETURNING 1;

-- name: decide_stages_of
UPDATE stage SET publication = ?1
WHERE writer IN (SELECT number FROM writer WHERE queue = ?2) AND publication IS NULL RETURNING 1;

-- name: delete_stages
DELETE FROM stage
WHERE number IN (SELECT number FROM stage WHERE publication = ? LIMIT ?) RETURNING 1;

-- name: insert_piece
INSERT INTO piece (stage, part, place, messages, content) VALUES (?, ?, ?, ?, ?);

-- name: part_of
SELECT 1 FROM piece WHERE stage = ? AND part = ? LIMIT 1;

-- name: first_piece
SELECT number, content FROM piece WHERE stage = ? ORDER BY part, place LIMIT 1;

-- name: put_piece
UPDATE piece SET messages = ?, content = ? WHERE number = ?;

-- name: delete_piece
DELETE FROM piece WHERE number = ?;

-- name: delete_pieces
DELETE FROM piece WHERE number IN (
    SELECT piece.number FROM stage JOIN piece ON piece.stage = stage.number WHERE stage.publication = ? LIMIT ?
) RETURNING 1;

-- name: insert_publication
INSERT INTO publication (writer, queue, batch, stages, messages_per_s_max, next_at_ms)
VALUES (?, ?, ?, ?, ?, ?) RETURNING number;

-- name: put_publication
UPDATE publication SET stages = ?, next_at_ms = ? WHERE number = ?;

-- name: delete_publication
DELETE FROM publication WHERE number = ?;

-- name: all_publications
SELECT number, writer, queue, batch, stages, messages_per_s_max, next_at_ms FROM publication ORDER BY number;

-- name: put_source
INSERT OR REPLACE INTO source
    (number, queue, name, consumer, epoch, acknowledged, last, lost, hold_s, lease_s, beat_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number;

-- name: delete_source
DELETE FROM source WHERE number = ?;

-- name: all_sources
SELECT number, queue, name, consumer, epoch, acknowledged, last, lost, hold_s, lease_s, beat_at_ms
FROM source ORDER BY number;

-- name: put_claim
INSERT OR REPLACE INTO claim
    (id, source, queue, number, state, messages, grouped, shards, filled, bound_at_ms, ahead_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id;

-- name: delete_claim
DELETE FROM claim WHERE id = ?;

-- name: all_claims
SELECT id, source, queue, number, state, messages, grouped, shards, filled, bound_at_ms, ahead_ms FROM claim
ORDER BY id;

-- name: claimed_by_lane
SELECT claim, first >> 41, sum(messages) FROM claim_range GROUP BY 1, 2;

-- name: add_range
INSERT INTO claim_range (first, last, claim, shard, messages, leased) VALUES (?, ?, ?, ?, ?, ?);

-- name: cut_range
-- What of a range is left from a position on.
UPDATE claim_range SET first = ?, messages = ? WHERE first = ?;

-- name: end_range
-- What of a range is left up to a position.
UPDATE claim_range SET last = ?, messages = ? WHERE first = ?;

-- name: delete_range
DELETE FROM claim_range WHERE first = ?;

-- name: ranges_of
SELECT first, last, shard, messages, leased FROM claim_range WHERE claim = ? ORDER BY shard, first LIMIT ?;

-- name: range_at
-- The last range that begins up to a position.
SELECT first, last, claim, shard, messages, leased FROM claim_range WHERE first <= ? ORDER BY first DESC LIMIT 1;

-- name: ranges_between
SELECT first, last FROM claim_range WHERE first >= ? AND first < ? ORDER BY first;

-- name: positions_between
SELECT position FROM message WHERE position >= ? AND position < ? ORDER BY position LIMIT ?;

-- name: sizes_between
SELECT position, length(CAST(body AS BLOB)) + length(properties) FROM message
WHERE position >= ? AND position < ? ORDER BY position LIMIT ?;

-- name: claimed_leases
-- The leases of a range in their order, and whether the message counts its retention from another queue.
SELECT
    message.first_sent_at_ms IS NOT NULL,
    lease.position, lease.lane, visible_at_ms, receive_count, generation, epoch, received_at_ms,
    lease.first_received_at_ms, lease.group_key, lease.log
FROM lease CROSS JOIN message ON message.position = lease.position
WHERE lease.position >= ? AND lease.position < ? ORDER BY lease.position LIMIT ?;

-- name: shard_messages
-- The ungrouped messages of a shard from a position on; one range follows the other in the order of the index.
SELECT
    message.position, id, body, properties, coalesce(first_sent_at_ms, sent_at_ms),
    coalesce(receive_count, 1) + coalesce(receives_before, 0)
FROM claim_range
CROSS JOIN message ON message.position >= max(claim_range.first, ?3) AND message.position <= claim_range.last
LEFT JOIN lease ON lease.position = CASE WHEN leased THEN message.position END
WHERE claim = ?1 AND shard = ?2 AND claim_range.first >= coalesce(
    (SELECT max(first) FROM claim_range WHERE claim = ?1 AND shard = ?2 AND first <= ?3), 0
)
LIMIT ?4;

-- name: group_shard_end
-- The position behind so many grouped messages of a claim, from a position on.
SELECT lease.position
FROM claim_range
CROSS JOIN lease ON lease.position >= max(claim_range.first, ?2) AND lease.position <= claim_range.last
WHERE claim = ?1 AND shard = -1 AND claim_range.first >= coalesce(
    (SELECT max(first) FROM claim_range WHERE claim = ?1 AND shard = -1 AND first <= ?2), 0
)
LIMIT 1 OFFSET ?3;

-- name: group_shard_messages
-- The grouped messages of a shard from a position on, before another one. (With two upper bounds of its own, SQLite
-- would seek by one of them, and look at all leases behind each range.)
SELECT
    message.position, id, body, properties, coalesce(first_sent_at_ms, sent_at_ms),
    receive_count + coalesce(receives_before, 0)
FROM claim_range
CROSS JOIN lease ON lease.position >= max(claim_range.first, ?4) AND lease.position <= min(claim_range.last, ?5 - 1)
CROSS JOIN message ON message.position = lease.position
WHERE claim = ?1 AND shard = -1 AND lease.group_key % ?3 = ?2 AND claim_range.first >= coalesce(
    (SELECT max(first) FROM claim_range WHERE claim = ?1 AND shard = -1 AND first <= ?4), 0
)
LIMIT ?6;

-- name: claimed_message
-- Where a message of a claim stands; the id is looked for among all of them.
SELECT message.position
FROM claim_range CROSS JOIN message ON message.position >= claim_range.first AND message.position <= claim_range.last
WHERE claim = ? AND id = ? LIMIT 1;

-- name: look_between
-- Messages as somebody sees them who only looks: whether they are claimed, and their leases.
SELECT
    EXISTS (
        SELECT 1 FROM claim_range
        WHERE first = (SELECT max(first) FROM claim_range WHERE first <= message.position) AND last >= message.position
    ),
    message.position, sent_at_ms,
    lease.position, lane, visible_at_ms, receive_count, generation, epoch, received_at_ms, lease.first_received_at_ms,
    lease.group_key, log
FROM message LEFT JOIN lease ON lease.position = message.position
WHERE message.position >= ? AND message.position < ? ORDER BY message.position LIMIT ?;

-- name: visible_between
-- Which of the first so many messages are not hidden, where those without leases are if they were sent up to an instant.
SELECT at, sent_at_ms FROM (
    SELECT message.position AS at, sent_at_ms, visible_at_ms AS until_ms
    FROM message LEFT JOIN lease ON lease.position = message.position
    WHERE message.position >= ? AND message.position < ? ORDER BY message.position LIMIT ?
)
WHERE CASE WHEN until_ms IS NULL THEN sent_at_ms <= ? ELSE until_ms <= ? END LIMIT ?;

-- name: hidden_leases
-- Of a lane's first so many hidden messages, by when they become visible, those in flight, or the delayed ones, with the
-- size of their bodies. (What is passed over is so in the index.)
SELECT
    lease.position, lease.lane, visible_at_ms, receive_count, generation, epoch, received_at_ms,
    lease.first_received_at_ms, lease.group_key, lease.log, message.id, octet_length(body)
FROM (
    SELECT position AS at, receive_count AS receives, visible_at_ms AS until_ms
    FROM lease WHERE lane = ? AND visible_at_ms > ? AND visible_at_ms < ? ORDER BY visible_at_ms, position LIMIT ?
) CROSS JOIN lease ON lease.position = at CROSS JOIN message ON message.position = at
WHERE (receives > 0) = ? AND ((at >= ? AND at < ?) OR at >= ? OR until_ms >= 1 << 61) LIMIT ?;

-- name: claimed_without_lease
SELECT message.position, sent_at_ms
FROM claim_range CROSS JOIN message ON message.position >= claim_range.first AND message.position <= claim_range.last
WHERE claim_range.first >= ? AND claim_range.first < ? AND leased = 0 ORDER BY claim_range.first LIMIT ?;

-- name: id_at
SELECT id, octet_length(body) FROM message WHERE position = ?;

-- name: properties_at
SELECT properties FROM message WHERE position = ?;
