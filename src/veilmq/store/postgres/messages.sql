-- Messages of standard queues. Each statement acts on one partition ($1).
--
-- The variant for a logged queue has the text after "log:", and not the lines marked "no log". Its last arguments are the first
-- partition and the name of the queue (see queues.py, and mq.outcomes). The text after "fair:" is for messages with groups, after
-- "fifo:" for FIFO queues.

-- name: send
-- $2 counters, $3 priorities, $4 delays in ms, $5 ids, $6 properties, $7 bodies; $8 group keys, null for messages without a group.
-- A retired partition stores nothing. Turns are inserted in the order of groups, to avoid deadlocks.
INSERT INTO mq.msg (qp, seq, priority, visible_at, sent_at, id, properties, body
    -- fair: , group_key
)
SELECT $1, (clock.now << 20) | new.counter, new.priority, clock.now + new.delay, clock.now, new.id, new.properties, new.body
    -- fair: , new.group_key
FROM unnest($2::int[], $3::smallint[], $4::bigint[], $5::bytea[], $6::bytea[], $7::text[]
        -- fair: , $8::bigint[]
    ) AS new (counter, priority, delay, id, properties, body
        -- fair: , group_key
    ), (SELECT mq.now_ms() AS now) clock
WHERE EXISTS (SELECT FROM mq.part WHERE qp = $1 AND NOT retired)
-- fair: ORDER BY new.group_key, new.priority
RETURNING id, seq, visible_at, sent_at

-- name: add_priorities
UPDATE mq.part SET priorities = ARRAY(
    SELECT DISTINCT each FROM unnest(priorities || $2::smallint[]) AS each ORDER BY each
)
WHERE qp = $1 AND NOT priorities @> $2::smallint[]

-- name: receive
-- $2 count, $3 timeout in ms, $4 generation, $5 low-water marks (node.py), $6 retention in ms; for parked receives, $7 the time of the
-- request and $8 the latest end of the lease, otherwise null; $9 positions that the receive has already, or null. Order: priority,
-- lower first, then visible_at. For a logged queue, $10 is the receive count of dead letters, or null, and $11 and $12 are, for each
-- message, the begin and the end of its receive's share.
WITH clock AS MATERIALIZED (
    SELECT mq.now_ms() AS now
), chosen AS MATERIALIZED (
    SELECT ready.row_id, ready.visible_at
        -- log: , of_part.priority, ready.seq, ready.was, coalesce((ready.was).receive_count >= $10, false) AS is_dead
    FROM clock, mq.part, unnest(part.priorities) AS of_part (priority), LATERAL (
        SELECT msg.ctid AS row_id, msg.visible_at
            -- log: , msg.seq, mq.receipt_of(msg) AS was
        FROM mq.msg
        WHERE msg.qp = $1 AND msg.priority = of_part.priority
            AND (msg.visible_at, msg.seq) > (
                greatest(($5::bigint[])[of_part.priority], clock.now - $6), coalesce(($5::bigint[])[of_part.priority + 16], -1)
            )
            AND msg.visible_at <= clock.now -- never before sent_at, so no expired message is read
            AND msg.sent_at > clock.now - $6
            AND (msg.sent_at > part.ended_until OR msg.seq >= part.ended_before) AND ($9::bigint[] IS NULL OR msg.seq <> ALL($9))
        ORDER BY msg.visible_at, msg.seq
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ) ready
    WHERE part.qp = $1 AND NOT part.retired
    LIMIT $2
)
-- Leases: fair.sql replaces the text above for fair queues.
-- log: , placed AS MATERIALIZED (
-- log:     SELECT *, count(*) OVER (PARTITION BY is_dead) AS messages,
-- log:         row_number() OVER (PARTITION BY is_dead ORDER BY priority, visible_at, seq) AS at_place -- no fair
-- fair: -- log: row_number() OVER (PARTITION BY is_dead ORDER BY place) AS at_place
-- log:     FROM chosen
-- log: ), leased AS (
UPDATE mq.msg SET
    visible_at = least(clock.now + $3, $8), receive_count = msg.receive_count + 1, received_at = coalesce($7, clock.now),
    first_received_at = coalesce(msg.first_received_at, clock.now), generation = $4, epoch = msg.epoch + 1,
    log = NULL -- no log
    -- log: log = CASE WHEN NOT is_dead
    -- log:     THEN mq.log_begun($11, $12, at_place, messages, clock.now - coalesce($7, clock.now)) END
FROM chosen, clock -- no log
-- log: FROM placed AS chosen, clock
WHERE msg.qp = $1 AND msg.ctid = chosen.row_id -- no fair
-- fair: WHERE msg.qp = $1 AND msg.seq = ANY(ARRAY(SELECT seq FROM given)) AND msg.seq = chosen.seq
RETURNING msg.seq, msg.id, msg.body, msg.properties, msg.sent_at, msg.first_received_at, msg.receive_count,
    msg.receives_before, msg.visible_at, msg.priority, msg.generation, msg.epoch, msg.source, msg.received_at,
    chosen.visible_at AS was_visible_at, clock.now
    -- fair: , chosen.place, msg.group_key, msg.group_key = ANY($5) AND NOT EXISTS (
    -- fair:     SELECT FROM mq.msg AS other
    -- fair:     WHERE other.qp = $1 AND other.priority = msg.priority AND other.group_key = msg.group_key
    -- fair:         AND (other.visible_at, other.seq) > (chosen.visible_at, chosen.seq) -- also of those that are given
    -- fair:         AND other.visible_at <= clock.now AND other.sent_at > clock.now - $6 AND ($9::bigint[] IS NULL OR other.seq <> ALL($9))
    -- fair: ) AS is_drained
    -- log: , was, is_dead
-- A message that another receive leased after this statement began is chosen in its new version but not leased: no event is written.
-- log: ), noted AS (
-- log:     INSERT INTO mq.event
-- log:     SELECT event.* FROM leased,
-- log:         unnest(mq.outcomes(CASE WHEN is_dead THEN 'die' ELSE 'supersede' END, (was).log, false)) AS outcome,
-- log:         mq.event_of($13, $14, outcome, was, NULL) AS event
-- log:     RETURNING *
-- log: ), kept AS (
-- log:     INSERT INTO mq.expired_receipt SELECT *, mq.now_ms() FROM noted WHERE outcome = 'expired' ON CONFLICT DO NOTHING
-- log: )
-- log: SELECT seq, id, body, properties, sent_at, first_received_at, receive_count, receives_before, visible_at, priority, generation,
-- log:     epoch, source, received_at, was_visible_at, now
-- fair: -- log: , place, group_key, is_drained
-- log: FROM leased

-- name: hide
-- Hide the messages at the positions $2, just received in the same transaction, for $3 ms each, and at most $4 ms (null: no limit)
-- from the request. ($5, the retention, is unused.)
UPDATE mq.msg SET visible_at = least(clock.now + requested.timeout, msg.received_at + $4)
FROM unnest($2::bigint[], $3::bigint[]) AS requested (seq, timeout), (SELECT mq.now_ms() AS now) clock
WHERE msg.qp = $1 AND msg.seq = ANY($2) AND msg.seq = requested.seq AND $5::bigint IS NOT NULL
RETURNING msg.seq, msg.visible_at

-- name: move
-- Move the messages at the positions $3, locked in the same transaction, to the partition $2 unless it is retired: as dead letters of
-- the queue $5, with $6 receives not counted, or, if $5 is null, as new messages with the ids $7. $4 is the start of the counter.
WITH clock AS MATERIALIZED (SELECT mq.now_ms() AS now), moved AS (
    DELETE FROM mq.msg
    WHERE msg.qp = $1 AND msg.seq = ANY($3::bigint[]) AND EXISTS (SELECT FROM mq.part WHERE qp = $2 AND NOT retired)
    RETURNING msg.*, array_position($3, msg.seq) AS place, $5::text IS NOT NULL AS dies
)
INSERT INTO mq.msg (
    qp, seq, visible_at, sent_at, first_received_at, priority, id, properties, source, receives_before, body, group_key
)
SELECT $2, (clock.now << 20) | (($4::bigint + moved.place) & 1048575), clock.now, CASE WHEN dies THEN moved.sent_at ELSE clock.now END,
    CASE WHEN dies THEN moved.first_received_at END, moved.priority, coalesce(($7::bytea[])[moved.place], moved.id), moved.properties, $5,
    CASE WHEN dies THEN moved.receives_before + moved.receive_count - $6::integer ELSE 0 END, moved.body, moved.group_key
FROM moved, clock
RETURNING priority

-- name: peek
-- The $2 messages that a receive would return, in its order; $3 is the retention in ms. (The text after "lock:" locks them.)
SELECT ready.* FROM mq.part, unnest(part.priorities) AS of_part (priority), LATERAL (
    SELECT * FROM mq.msg
    WHERE msg.qp = $1 AND msg.priority = of_part.priority AND msg.visible_at > mq.now_ms() - $3 AND msg.visible_at <= mq.now_ms()
        AND msg.sent_at > mq.now_ms() - $3 AND (msg.sent_at > part.ended_until OR msg.seq >= part.ended_before)
    ORDER BY msg.visible_at, msg.seq
    LIMIT $2
    -- lock: FOR UPDATE SKIP LOCKED
) ready
WHERE part.qp = $1 AND NOT part.retired
LIMIT $2

-- name: lock_messages
-- The messages at the positions $2, locked; $3 is the retention in ms.
SELECT msg.*, clock.now FROM mq.msg, (SELECT mq.now_ms() AS now, ended_until, ended_before FROM mq.part WHERE qp = $1) clock
WHERE msg.qp = $1 AND msg.seq = ANY($2::bigint[]) AND msg.sent_at > clock.now - $3
    AND (msg.sent_at > clock.ended_until OR msg.seq >= clock.ended_before)
ORDER BY msg.seq
FOR UPDATE OF msg

-- name: make_dead_letters
-- Make the messages at the positions $2, just stored, dead letters of the queue $3, with their receives and times from there. (In a
-- FIFO queue, their age starts anew.)
UPDATE mq.msg
SET source = $3, receives_before = was.receives, first_received_at = was.first_received_at, sent_at = was.sent_at
FROM unnest($2::bigint[], $4::integer[], $5::bigint[], $6::bigint[]) AS was (seq, receives, first_received_at, sent_at)
WHERE msg.qp = $1 AND msg.seq = ANY($2) AND msg.seq = was.seq

-- name: remove
-- Delete messages locked in the same transaction. ($3, the retention, is unused.)
DELETE FROM mq.msg WHERE qp = $1 AND seq = ANY($2::bigint[]) AND $3::bigint IS NOT NULL

-- name: write_events
-- Write the events that the operation $2 (see mq.outcomes) will cause for the messages at the positions $3, locked in the same
-- transaction; $4 and $5 are the first partition of the queue and its name.
WITH noted AS (
    INSERT INTO mq.event
    SELECT event.* FROM mq.msg, unnest(mq.outcomes($2, msg.log, msg.visible_at > mq.now_ms())) AS outcome,
        mq.event_of($4, $5, outcome, mq.receipt_of(msg), NULL) AS event
    WHERE msg.qp = $1 AND msg.seq = ANY($3::bigint[]) AND msg.log IS NOT NULL
    ORDER BY array_position($3, msg.seq), event.outcome <> 'expired'
    RETURNING *
), closed AS (
    UPDATE mq.msg SET log = log | 2 WHERE qp = $1 AND seq = ANY($3::bigint[]) AND log & 3 = 1
)
INSERT INTO mq.expired_receipt SELECT *, mq.now_ms() FROM noted WHERE outcome = 'expired' AND $2 <> 'delete' ON CONFLICT DO NOTHING

-- name: set_log
-- Set the log column of the messages at the positions $2, just received in the same transaction, to $3.
UPDATE mq.msg SET log = begun.log FROM unnest($2::bigint[], $3::bigint[]) AS begun (seq, log)
WHERE msg.qp = $1 AND msg.seq = ANY($2) AND msg.seq = begun.seq AND msg.log IS NOT NULL

-- name: end_receipts
-- Receipts whose delete has no effect: $2 positions and $3 generations. Write the events of those that are still open; for messages
-- that retention ($4, in ms) or a purge has ended, with that end. Return the positions of these receipts; $5 and $6 are the first
-- partition of the queue and its name.
-- fifo: WITH locked AS MATERIALIZED ( -- waits for receives that have written events of these messages but not leased them yet
-- fifo:     SELECT mq.fifo_lock($1, $2::bigint[])
-- fifo: ), ended AS (
WITH ended AS ( -- no fifo
    UPDATE mq.msg SET log = msg.log | 2
    FROM
        -- fifo: locked,
        unnest($2::bigint[], $3::bigint[]) AS requested (seq, generation), mq.part
    WHERE part.qp = $1 AND msg.qp = $1 AND msg.seq = ANY($2) AND msg.seq = requested.seq AND msg.generation = requested.generation AND msg.log & 3 = 1
    RETURNING mq.receipt_of(msg) AS was, least(part.retired_at, msg.sent_at + $4) AS ends_at
), noted AS (
    INSERT INTO mq.event
    SELECT event.* FROM ended, unnest('{expired,late_deleted}'::text[]) AS outcome,
        mq.event_of($5, $6, outcome, was, ends_at) AS event
)
SELECT (was).seq FROM ended

-- name: inspect
-- The first $2 messages within their retention of $3 ms, or of claims that are not acknowledged, in the order of arrival.
SELECT msg.*
FROM mq.part JOIN mq.msg ON msg.qp = part.qp AND CASE WHEN msg.claim IS NULL
    THEN msg.sent_at > mq.now_ms() - $3 AND (msg.sent_at > part.ended_until OR msg.seq >= part.ended_before)
    ELSE msg.claim <> ALL (ARRAY(SELECT claim_id FROM mq.claim WHERE claim.part = $1 AND state = 'acknowledged')) END
WHERE part.qp = $1 AND NOT part.retired ORDER BY msg.seq LIMIT $2

-- name: inspect_at
-- The first $2 messages in the state $5, within their retention of $3 ms or of claims that are not acknowledged, in the order of
-- visible_at: of each priority among all visible messages, or among the first $4 hidden ones.
SELECT shown.* FROM mq.part, unnest(part.priorities) AS of_part (priority), LATERAL (
    SELECT passed.* FROM (
        SELECT * FROM mq.msg
        WHERE msg.qp = $1 AND msg.priority = of_part.priority
            AND msg.visible_at > mq.now_ms() - CASE WHEN $5 = 'visible' THEN $3::bigint ELSE 0 END
            AND msg.visible_at <= CASE WHEN $5 = 'visible' THEN mq.now_ms() ELSE 1::bigint << 62 END
        ORDER BY msg.visible_at, msg.seq LIMIT CASE WHEN $5 <> 'visible' THEN $4::bigint END
    ) AS passed
    WHERE ($5 = 'visible' OR (passed.receive_count > 0) = ($5 = 'in flight')) AND CASE WHEN passed.claim IS NULL
        THEN passed.sent_at > mq.now_ms() - $3 AND (passed.sent_at > part.ended_until OR passed.seq >= part.ended_before)
        ELSE passed.claim <> ALL (ARRAY(SELECT claim_id FROM mq.claim WHERE claim.part = $1 AND state = 'acknowledged')) END
    LIMIT $2
) shown
WHERE part.qp = $1 AND NOT part.retired ORDER BY shown.visible_at, shown.seq LIMIT $2

-- name: received
-- The received messages at the positions $2, within their retention of $3 ms or claimed.
SELECT msg.* FROM mq.msg CROSS JOIN mq.part
WHERE part.qp = $1 AND NOT part.retired AND msg.qp = $1 AND msg.seq = ANY($2::bigint[]) AND msg.receive_count > 0
    AND (msg.claim IS NOT NULL OR msg.sent_at > mq.now_ms() - $3
        AND (msg.sent_at > part.ended_until OR msg.seq >= part.ended_before))
ORDER BY msg.seq

-- name: bodies
SELECT seq, body FROM mq.msg WHERE qp = $1 AND seq = ANY($2::bigint[])

-- name: delete
-- Receipts: $2 positions (ascending, to avoid deadlocks, and unique), $3 generations, $4 epochs, $5 whether any epoch acts, $7 whether
-- the receipt acts only while it is live, $8 whether it acts although a later receive superseded it, unless the message is claimed;
-- $6 retention in ms. Return the previous state of each existing message. is_missed: the statement waited for a row that changed
-- meanwhile, and did not find it again; repeat it.
WITH clock AS MATERIALIZED (
    SELECT mq.now_ms() AS now, ended_until, ended_before FROM mq.part WHERE qp = $1
), requested AS MATERIALIZED (
    SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::boolean[], $7::boolean[], $8::boolean[])
        AS requested (seq, generation, epoch, any_epoch, only_live, any_receive)
), done AS (
    DELETE FROM mq.msg USING clock, requested
    WHERE msg.qp = $1 AND msg.seq = requested.seq AND msg.sent_at > now - $6 AND (msg.sent_at > ended_until OR msg.seq >= ended_before)
        AND (msg.generation = requested.generation AND (msg.epoch = requested.epoch OR any_epoch) OR any_receive AND visible_at < 1::bigint << 61)
        AND (NOT only_live OR visible_at > now)
    RETURNING msg.seq, msg.generation = requested.generation AND (msg.epoch = requested.epoch OR any_epoch) AS is_current,
        any_receive AS is_earlier, visible_at, now
        -- log: , mq.receipt_of(msg) AS was, msg.generation <> requested.generation AS is_of_another
-- log: ), noted AS (
-- log:     INSERT INTO mq.event
-- log:     SELECT event.* FROM done,
-- log:         unnest(CASE WHEN NOT is_of_another THEN mq.outcomes('delete', (was).log, (was).visible_at > mq.now_ms())
-- log:             WHEN (was).log & 3 <> 1 THEN NULL
-- log:             WHEN (was).visible_at > mq.now_ms() THEN ARRAY['deleted_by_earlier'] ELSE ARRAY['expired'] END) AS outcome,
-- log:         mq.event_of($9, $10, outcome, was, NULL) AS event
)
SELECT seq, is_current, is_earlier, visible_at, now, false AS is_missed FROM done
UNION ALL
SELECT found.*, (is_current OR is_earlier) AND (NOT only_live OR visible_at > clock.now)
FROM clock, requested, LATERAL (
    SELECT msg.seq, msg.generation = requested.generation AND (msg.epoch = requested.epoch OR any_epoch) AS is_current,
        any_receive AND visible_at < 1::bigint << 61 AS is_earlier, visible_at, now
    FROM mq.msg
    WHERE msg.qp = $1 AND msg.seq = requested.seq AND msg.sent_at > now - $6 AND (msg.sent_at > ended_until OR msg.seq >= ended_before)
    OFFSET 0 -- one by one
) AS found
WHERE requested.seq <> ALL(ARRAY(SELECT seq FROM done))

-- name: change
-- Receipts as above; $9 timeouts in ms, $10 maximum leases in ms or null, $11 whether to replace the receipts. Messages are locked
-- first, to return their previous state. A change that is not is_short would exceed the maximum lease and is not applied.
WITH found AS MATERIALIZED (
    SELECT msg.*, clock.now, clock.now + requested.timeout AS until, requested.renew, requested.only_live,
        msg.generation = requested.generation AND (msg.epoch = requested.epoch OR requested.any_epoch) AS is_current,
        requested.any_receive AND msg.visible_at < 1::bigint << 61 AS is_earlier,
        -- One column: the planner estimates an OR of two as so likely that it scans whole partitions.
        msg.generation = requested.generation AND (msg.epoch = requested.epoch OR requested.any_epoch)
            OR requested.any_receive AND msg.visible_at < 1::bigint << 61 AS acts,
        requested.timeout = 0 OR msg.receive_count = 0 AND requested.timeout <= requested.lease_max OR requested.lease_max IS NULL
            OR clock.now + requested.timeout <= msg.received_at + requested.lease_max AS is_short
    FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::boolean[], $7::boolean[], $8::boolean[], $9::bigint[], $10::bigint[],
            $11::boolean[]) AS requested (seq, generation, epoch, any_epoch, only_live, any_receive, timeout, lease_max, renew)
        CROSS JOIN (SELECT mq.now_ms() AS now, ended_until, ended_before FROM mq.part WHERE qp = $1) clock
        CROSS JOIN LATERAL (
            SELECT msg.ctid AS row_id, msg.seq, msg.visible_at, msg.generation, msg.epoch, msg.received_at, msg.group_key,
                msg.receive_count, msg.sent_at
                -- log: , mq.receipt_of(msg) AS was
            FROM mq.msg
            WHERE msg.qp = $1 AND msg.seq = requested.seq AND msg.sent_at > clock.now - $6
                AND (msg.sent_at > clock.ended_until OR msg.seq >= clock.ended_before)
            FOR UPDATE
        ) msg
), done AS (
    UPDATE mq.msg SET visible_at = found.until, epoch = found.epoch + found.renew::int
        -- log: , log = mq.log_moved(msg.log, found.until <= found.now)
    FROM found
    WHERE msg.qp = $1 AND msg.ctid = found.row_id AND found.acts AND (NOT found.only_live OR found.visible_at > found.now)
        AND found.is_short
    RETURNING msg.seq
        -- log: , found.was, found.until <= found.now AS is_released
-- log: ), noted AS (
-- log:     INSERT INTO mq.event
-- log:     SELECT event.* FROM done, unnest(mq.outcomes('release', (was).log, true)) AS outcome,
-- log:         mq.event_of($12, $13, outcome, was, NULL) AS event
-- log:     WHERE is_released
)
SELECT seq, is_current, is_earlier, visible_at, now, until, is_short, epoch + renew::int AS epoch, group_key, receive_count, sent_at,
    is_short AND acts AND (NOT only_live OR visible_at > now) AND seq <> ALL(ARRAY(SELECT done.seq FROM done)) AS is_missed
FROM found

-- name: in_flight
-- The number of messages in flight, without claimed ones, and when the first lease ends, among the first $2 hidden messages of each
-- priority (null: all); is_whole: these are all. $3 is the retention in ms.
SELECT coalesce(sum(leased), 0)::integer AS in_flight, min(due) AS due, coalesce(bool_and(hidden < $2), true) AS is_whole
FROM mq.part, unnest(part.priorities) AS of_part (priority), LATERAL (
    SELECT count(*) AS hidden, count(*) FILTER (WHERE is_leased) AS leased, min(ends_at) FILTER (WHERE is_leased) AS due FROM (
        SELECT least(visible_at, sent_at + $3) AS ends_at, receive_count > 0 AND sent_at > mq.now_ms() - $3
            AND (sent_at > part.ended_until OR seq >= part.ended_before) AS is_leased
        FROM mq.msg
        WHERE qp = $1 AND msg.priority = of_part.priority AND visible_at > mq.now_ms() AND visible_at < 1::bigint << 61
        ORDER BY visible_at LIMIT $2
    ) passed
) counted
WHERE part.qp = $1

-- name: claim_count
-- Return the last count. If is_claimed, the caller must count, and no other node does for $2 ms.
WITH claimed AS (
    INSERT INTO mq.in_flight AS before (qp, next_at) VALUES ($1, mq.now_ms() + $2)
    ON CONFLICT (qp) DO UPDATE SET next_at = excluded.next_at WHERE before.next_at <= mq.now_ms()
    RETURNING qp
)
SELECT EXISTS (SELECT FROM claimed) AS is_claimed, counted, next_at, mq.now_ms() AS now
FROM (VALUES (1)) AS always LEFT JOIN mq.in_flight ON qp = $1

-- name: store_count
-- Store the count $2. Additions to the last count, $4, during the count are kept, because the count may not include them.
INSERT INTO mq.in_flight AS before (qp, counted, next_at) VALUES ($1, $2, mq.now_ms() + $3)
ON CONFLICT (qp) DO UPDATE SET counted = $2 + greatest(0, before.counted - $4), next_at = excluded.next_at
RETURNING counted, next_at, mq.now_ms() AS now

-- name: add_count
UPDATE mq.in_flight SET counted = greatest(0, counted + $2) WHERE qp = $1 AND ($2 > 0 OR next_at = $3)

-- name: count
-- Of the partitions $1 with retentions of $2 ms, in this order. Claimed messages count as in flight, also past their retention, until
-- their claim is acknowledged. OFFSET 0: once for each partition, not for each message.
SELECT counted.* FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS of_queue (qp, kept_ms, place) LEFT JOIN mq.part USING (qp),
LATERAL (
    SELECT mq.now_ms() AS now, ARRAY(SELECT claim_id FROM mq.claim WHERE claim.part = of_queue.qp AND state = 'acknowledged') AS doomed OFFSET 0
) AS clock, LATERAL (
    SELECT count(*) FILTER (WHERE due <= now) AS visible,
        count(*) FILTER (WHERE visible_at > now AND receive_count > 0 AND (claim = ANY(doomed)) IS NOT TRUE) AS in_flight,
        count(*) FILTER (WHERE due > now AND receive_count = 0) AS delayed,
        min(sent_at) FILTER (WHERE is_kept) AS oldest_sent_at_ms
    FROM (
        SELECT msg.*,
            visible_at AS due, -- no fifo
            -- fifo: mq.due(visible_at, sent_at, receive_count, part.delay) AS due,
            sent_at > clock.now - kept_ms AND (sent_at > part.ended_until OR seq >= part.ended_before) AS is_kept
        FROM mq.msg WHERE msg.qp = of_queue.qp
    ) AS kept
    WHERE is_kept OR claim IS NOT NULL
) AS counted ORDER BY place

-- name: admit
SELECT mq.admit($1, $2, $3, $4)

-- name: block_purge
-- Block purges for the rest of the transaction; returns no row for a retired partition.
SELECT 1 FROM mq.part WHERE qp = $1 AND NOT retired FOR SHARE
