-- What goes from one database of a store to another: the data plane of it. Every statement names one partition ($1), of the
-- outbox here or of the queue there; but for due, by which a relay finds its work.

-- name: due
-- The outboxes that have something to be relayed now.
SELECT qp, source_id, source, place, target_id, target, settings FROM mq.outbox
WHERE next_at <= mq.now_ms() AND (seqs <> '{}' OR EXISTS (SELECT FROM mq.message WHERE message.qp = outbox.qp))
ORDER BY next_at, qp

-- name: lock_outbox
SELECT number, token, seqs FROM mq.outbox WHERE qp = $1 FOR UPDATE

-- name: open_batch
-- Gives the messages at the positions $3 the next number and the token $2; other nodes leave them alone for $4 ms.
UPDATE mq.outbox SET number = number + 1, token = $2, seqs = $3, next_at = mq.now_ms() + $4 WHERE qp = $1 RETURNING number

-- name: close_batch
UPDATE mq.outbox SET seqs = '{}', next_at = 0 WHERE qp = $1

-- name: renumber
-- The database has forgotten what it had sent (it was restored, or failed over to a standby that lagged): number $2 has arrived,
-- and not the batch $3 with the token $4, unless that has changed meanwhile.
UPDATE mq.outbox SET number = $2, seqs = '{}', next_at = 0 WHERE qp = $1 AND number = $3 AND token = $4

-- name: put_off
UPDATE mq.outbox SET next_at = mq.now_ms() + $2 WHERE qp = $1

-- name: first
-- The positions of up to $2 messages that come first, of about $3 bytes together.
SELECT seq FROM (
    SELECT seq, sum(size_bytes) OVER (ORDER BY seq) - size_bytes AS bytes_before FROM (
        SELECT seq, octet_length(body) + coalesce(octet_length(properties), 0) AS size_bytes
        FROM mq.msg WHERE qp = $1 ORDER BY seq LIMIT $2
    ) AS next
) AS sized WHERE bytes_before < $3 ORDER BY seq

-- name: messages
-- The messages at the positions $2 with all that they have, and how long each is not to be seen yet.
SELECT to_jsonb(msg) || jsonb_build_object('waits', greatest(0, visible_at - mq.now_ms())) FROM mq.msg AS msg
WHERE qp = $1 AND seq = ANY($2::bigint[]) ORDER BY seq

-- name: depart
WITH gone AS (
    DELETE FROM mq.msg WHERE qp = $1 AND seq = ANY($2::bigint[]) RETURNING group_key
)
SELECT mq.fair_settle($1, array_agg(group_key)) FROM gone WHERE group_key IS NOT NULL HAVING count(*) > 0

-- name: fifo_depart
SELECT mq.fifo_remove($1, $2::bigint[], 1::bigint << 60)

-- name: note_arrival
-- A row: this batch is not there yet.
INSERT INTO mq.arrival AS before (qp, from_place, from_qp, number, token) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (qp, from_place, from_qp) DO UPDATE SET number = excluded.number, token = excluded.token
    WHERE before.number < excluded.number
RETURNING number

-- name: arrived
SELECT number, token FROM mq.arrival WHERE qp = $1 AND from_place = $2 AND from_qp = $3

-- name: arrive
-- $2 messages as above, in their order; $3 is where the counter begins.
INSERT INTO mq.msg
SELECT new.* FROM (SELECT mq.now_ms() AS now) AS clock, jsonb_array_elements($2::jsonb) WITH ORDINALITY AS come (item, at),
    LATERAL jsonb_populate_record(NULL::mq.msg, come.item || jsonb_build_object(
        'qp', $1::bigint,
        'seq', (clock.now << 20) | (($3::bigint + come.at) & 1048575),
        'visible_at', clock.now + (come.item ->> 'waits')::bigint,
        'sent_at', least((come.item ->> 'sent_at')::bigint, clock.now)
    )) AS new
RETURNING visible_at

-- name: fifo_received
-- Messages that were just sent at the positions $2 have the receives and times of $3, those messages as above.
UPDATE mq.fifo_msg AS msg SET source = was.source, first_received_at = was.first_received_at,
    receive_count = was.receive_count, receives_before = was.receives_before
FROM jsonb_populate_recordset(NULL::mq.fifo_msg, $3::jsonb) AS was
WHERE msg.qp = $1 AND msg.seq = ANY($2::bigint[]) AND msg.id = was.id

-- name: end_outbox
UPDATE mq.outbox SET ended_at = coalesce(ended_at, mq.now_ms()), seqs = '{}', next_at = 0 WHERE qp = $1

-- name: known_outbox
-- The outbox from the queue $1 to the last one of the name $2.
SELECT qp, target_id, place, settings FROM mq.outbox WHERE source_id = $1 AND target = $2 AND ended_at IS NULL
ORDER BY qp DESC LIMIT 1

-- name: make_outbox
-- $1 source_id, $2 source, $3 place, $4 target_id, $5 target, $6 settings.
WITH made AS (
    INSERT INTO mq.outbox (qp, source_id, source, place, target_id, target, settings)
    SELECT nextval(pg_get_serial_sequence('mq.part', 'qp')), $1, $2, $3, $4, $5, $6
    ON CONFLICT (source_id, place, target_id) DO UPDATE SET settings = excluded.settings
    RETURNING qp
), part AS (
    INSERT INTO mq.part (qp, queue_id) OVERRIDING SYSTEM VALUE SELECT qp, 0 FROM made ON CONFLICT (qp) DO NOTHING
)
SELECT qp FROM made
