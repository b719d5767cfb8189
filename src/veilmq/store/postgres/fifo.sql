-- Messages of FIFO queues. Most statements call a function of functions.sql, which acts on one partition ($1). Statements that are
-- missing here are variants of those in messages.sql.

-- name: send
SELECT place, o_seq AS seq, o_id AS id, o_visible_at AS visible_at, o_sent_at AS sent_at
FROM mq.fifo_send($1, $2, $3, $4, $5::text[], $6::bytea[], $7::bytea[], $8::bytea[], $9::text[], $10::bigint[])
ORDER BY place

-- name: receive
SELECT * FROM mq.fifo_receive($1, $2::integer[], $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)

-- name: hide
SELECT seq, visible_at FROM mq.fifo_hide($1, $2::bigint[], $3::bigint[], $4, $5)

-- name: expire
SELECT (SELECT seq FROM mq.fifo_msg WHERE qp = $1 AND seq >= (SELECT (ended_until + 1) << 20 FROM mq.part WHERE qp = $1)
    AND seq < (1 + (SELECT mq.fifo_expire($1, $2, $3, $4))) << 20 AND claim IS NULL ORDER BY seq LIMIT 1) IS NOT NULL

-- name: peek
-- The $2 messages that a receive would return from groups with nothing in flight, in its order; $3 is the retention in ms.
SELECT ready.* FROM (
    SELECT group_id, eligible_at, head FROM mq.fifo_group WHERE qp = $1 AND eligible_at <= mq.now_ms()
    ORDER BY eligible_at, head LIMIT $2 + 1000 -- a receive also skips up to 1,000 groups without messages
    -- lock: FOR UPDATE SKIP LOCKED
) AS free, LATERAL (
    SELECT * FROM mq.fifo_msg
    WHERE qp = $1 AND group_id = free.group_id AND seq >= (mq.now_ms() - $3 + 1) << 20 AND sent_at > mq.now_ms() - $3
        AND mq.due(visible_at, sent_at, receive_count, (SELECT delay FROM mq.part WHERE qp = $1)) <= mq.now_ms()
    ORDER BY seq
    LIMIT $2
) AS ready
ORDER BY free.eligible_at, free.head, ready.seq LIMIT $2

-- name: move
-- Move the messages at the positions $3, whose groups are locked, to the partition $2 unless it is retired: with the ids $4 and the
-- properties $5, or as dead letters of the queue $8 if that is not null. $6 is the start of the counter, $7 the retention in ms.
-- Return their number.
WITH moved AS MATERIALIZED (
    SELECT mq.fifo_move($1, seq, $2, $8, $6::bigint + place, new_id, new_properties) AS of_group
    FROM unnest($3::bigint[], $4::bytea[], $5::bytea[]) WITH ORDINALITY AS given (seq, new_id, new_properties, place)
    WHERE EXISTS (SELECT FROM mq.part WHERE qp = $2 AND NOT retired)
), settled AS MATERIALIZED (
    SELECT mq.fifo_settle($1, of_group, $7) FROM (SELECT DISTINCT of_group FROM moved WHERE of_group IS NOT NULL) AS its
)
SELECT count(of_group) FROM moved WHERE (SELECT count(*) FROM settled) >= 0

-- name: lock
-- Lock the groups of the messages at the positions $2, so that the next statement sees the changes for which this one waited.
SELECT mq.fifo_lock($1, $2::bigint[])

-- name: remove
SELECT mq.fifo_remove($1, $2::bigint[], $3)

-- name: inspect_visible
-- Up to $2 visible messages among the first $4, also those of blocked groups; $3 is the retention in ms.
SELECT first.* FROM (SELECT * FROM mq.fifo_msg WHERE qp = $1 ORDER BY seq LIMIT $4) AS first
WHERE first.sent_at > mq.now_ms() - $3
    AND mq.due(visible_at, sent_at, receive_count, (SELECT delay FROM mq.part WHERE qp = $1)) <= mq.now_ms()
LIMIT $2

-- name: inspect_in_flight
-- Up to $2 messages in flight of the first $4 blocked groups, in the order of the groups' last leases.
SELECT msg.*
FROM (
    SELECT * FROM mq.fifo_group WHERE qp = $1 AND eligible_at > mq.now_ms() ORDER BY eligible_at, head LIMIT $4
) AS of_group CROSS JOIN unnest(of_group.leased) AS lease (seq) CROSS JOIN LATERAL (
    SELECT * FROM mq.fifo_msg AS msg WHERE msg.qp = $1 AND msg.seq = lease.seq OFFSET 0 -- one by one
) AS msg
WHERE msg.visible_at > mq.now_ms() AND msg.receive_count > 0
    AND CASE WHEN msg.claim IS NULL THEN msg.sent_at > mq.now_ms() - $3
    ELSE msg.claim <> ALL (ARRAY(SELECT claim_id FROM mq.claim WHERE claim.part = $1 AND state = 'acknowledged')) END
ORDER BY of_group.eligible_at, of_group.head, msg.seq LIMIT $2

-- name: inspect_delayed
-- Up to $2 delayed messages among the last $4, in the order in which their delays end.
SELECT last.* FROM (
    SELECT *, mq.due(visible_at, sent_at, receive_count, (SELECT delay FROM mq.part WHERE qp = $1)) AS due
    FROM mq.fifo_msg WHERE qp = $1 ORDER BY seq DESC LIMIT $4
) AS last
WHERE last.due > mq.now_ms() AND last.receive_count = 0 AND last.sent_at > mq.now_ms() - $3
ORDER BY last.due, last.seq LIMIT $2

-- name: repeat
-- Repeat the attempt $3: hide its messages again for $5 ms (mq.fifo_hide), unless the attempt is at least $4 ms old. Return them in
-- their original order, each with the deadline in its receipt.
SELECT msg.*, attempt.issued[array_position(attempt.seqs, msg.seq)] AS issued_visible_at, mq.now_ms() AS now
FROM (SELECT * FROM mq.attempt WHERE qp = $2 AND key = $3 AND attempted_at + $4 > mq.now_ms() FOR UPDATE) AS attempt,
    mq.fifo_hide(
        $1, attempt.seqs, array_fill($5::bigint, ARRAY[cardinality(attempt.seqs)]), $6, $7,
        attempt.generations, attempt.epochs, attempt.deadlines
    ) AS msg
ORDER BY array_position(attempt.seqs, msg.seq)

-- name: store_attempt
INSERT INTO mq.attempt (qp, key, attempted_at, seqs, generations, epochs, issued, deadlines)
VALUES ($1, $2, mq.now_ms(), $3, $4, $5, $6, $6)
ON CONFLICT (qp, key) DO UPDATE SET attempted_at = excluded.attempted_at, seqs = excluded.seqs,
    generations = excluded.generations, epochs = excluded.epochs, issued = excluded.issued, deadlines = excluded.deadlines

-- name: move_attempt
UPDATE mq.attempt SET deadlines = $3 WHERE qp = $1 AND key = $2

-- name: delete
SELECT * FROM mq.fifo_act($1, $2::bigint[], $3::bigint[], $4::bigint[], $5::boolean[], NULL, NULL, NULL, $6, $7, $8)

-- name: change
SELECT * FROM mq.fifo_act(
    $1, $2::bigint[], $3::bigint[], $4::bigint[], $5::boolean[], $7::bigint[], $8::bigint[], $9::boolean[], $6, $10, $11
)

-- name: in_flight
-- As in messages.sql, among the first $2 blocked groups.
SELECT coalesce(sum(leased), 0)::integer AS in_flight, min(due) AS due, coalesce(count(*) < $2, true) AS is_whole
FROM (
    SELECT leased AS seqs FROM mq.fifo_group
    WHERE qp = $1 AND eligible_at > mq.now_ms() AND eligible_at < 1::bigint << 61 ORDER BY eligible_at LIMIT $2
) AS of_group CROSS JOIN LATERAL (
    SELECT count(*) AS leased, min(least(msg.visible_at, msg.sent_at + $3)) AS due
    FROM unnest(seqs) AS lease (seq) CROSS JOIN LATERAL (
        SELECT visible_at, sent_at FROM mq.fifo_msg AS msg WHERE msg.qp = $1 AND msg.seq = lease.seq OFFSET 0 -- one by one
    ) AS msg
    WHERE msg.visible_at > mq.now_ms() AND msg.sent_at > mq.now_ms() - $3
) AS its
