-- Messages of fair queues: standard queues with groups. Each statement acts on one partition ($1).

-- name: receive
-- The selection of a receive; the rest of the statement comes from messages.sql. The arguments are those there, but $5 are the noisy
-- groups, in the order in which they are served. is_drained: the message was the last visible one of its noisy group.
WITH clock AS MATERIALIZED (
    SELECT mq.now_ms() AS now
), given AS MATERIALIZED (
    SELECT seq, place
    FROM unnest(mq.fair_choose($1, $2, $6, $5, coalesce($9::bigint[], '{}'), true)) WITH ORDINALITY AS given (seq, place)
), chosen AS MATERIALIZED (
    SELECT msg.seq, msg.visible_at, given.place
        -- log: , mq.receipt_of(msg) AS was, coalesce(msg.receive_count >= $10, false) AS is_dead
    FROM given JOIN mq.msg ON msg.qp = $1 AND msg.seq = ANY(ARRAY(SELECT seq FROM given)) AND msg.seq = given.seq
    -- log: FOR UPDATE OF msg -- reads the versions that fair_choose has locked, which the snapshot of this statement lacks
)

-- name: peek
-- The $2 messages that a receive would return, in its order; $3 is the retention in ms, $4 the noisy groups.
WITH chosen AS MATERIALIZED (
    SELECT seq, place
    FROM unnest(mq.fair_choose($1, $2, $3, $4, '{}', false)) WITH ORDINALITY AS chosen (seq, place)
)
SELECT msg.*
FROM chosen JOIN mq.msg ON msg.qp = $1 AND msg.seq = ANY(ARRAY(SELECT seq FROM chosen)) AND msg.seq = chosen.seq
ORDER BY chosen.place

-- name: leases
-- For each priority, with and without groups: the up to $2 messages in flight whose leases end last, among the $3 hidden messages that
-- become visible last. $4 is the retention in ms.
SELECT flight.*, mq.now_ms() AS now
FROM mq.part, unnest(part.priorities) AS of_part (priority), LATERAL (
    SELECT hidden.seq, hidden.visible_at, hidden.group_key, hidden.received_at, hidden.sent_at FROM (
        SELECT msg.seq, msg.visible_at, msg.group_key, msg.received_at, msg.sent_at, msg.receive_count
        FROM mq.msg
        WHERE msg.qp = $1 AND msg.priority = of_part.priority
            AND msg.visible_at > mq.now_ms() AND msg.visible_at < 1::bigint << 61 AND msg.sent_at > mq.now_ms() - $4
        ORDER BY msg.visible_at DESC LIMIT $3
    ) AS hidden
    WHERE hidden.receive_count > 0
    LIMIT $2
) AS flight
WHERE part.qp = $1

-- name: group_states
-- When the groups $2 last sent, and whether they have visible messages; $3 is the retention in ms.
SELECT turn.group_key, max(turn.sent_at) AS sent_at, bool_or(EXISTS (
    SELECT FROM mq.msg
    WHERE msg.qp = $1 AND msg.priority = turn.priority AND msg.group_key = turn.group_key
        AND msg.visible_at >= turn.at AND msg.visible_at <= mq.now_ms() AND msg.sent_at > mq.now_ms() - $3
)) AS has_any
FROM mq.fair_turn AS turn WHERE turn.qp = $1 AND turn.group_key = ANY($2::bigint[])
GROUP BY turn.group_key
