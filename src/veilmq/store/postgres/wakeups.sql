-- Notifications between nodes, and the polls of awaited queues.

-- name: notify
SELECT pg_notify('veilmq', each) FROM unnest($1::text[]) AS each

-- name: awaited
-- For each partition $1 of a standard queue with a retention of $2 ms: whether it is in use, and when the next message behind the
-- low-water marks $3 (node.py; null for none) becomes or became visible.
SELECT requested.place, part.qp IS NOT NULL AS is_used, clock.now, (
    SELECT min(first.visible_at) FROM unnest(part.priorities) AS of_part (priority), LATERAL (
        SELECT msg.visible_at FROM mq.msg
        WHERE msg.qp = requested.qp AND msg.priority = of_part.priority AND msg.visible_at < 1::bigint << 61
            AND (msg.visible_at, msg.seq) > (
                greatest(($3::bigint[])[of_part.priority], clock.now - requested.retention), coalesce(($3::bigint[])[of_part.priority + 16], -1)
            )
            AND msg.sent_at > clock.now - requested.retention
            AND (msg.sent_at > part.ended_until OR msg.seq >= part.ended_before)
        ORDER BY msg.visible_at LIMIT 1
    ) AS first
) AS visible_at
FROM (SELECT mq.now_ms() AS now) AS clock, unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS requested (qp, retention, place)
    LEFT JOIN mq.part ON part.qp = requested.qp AND NOT part.retired

-- name: awaited_groups
-- The same for FIFO queues, from the groups; these include the end of retention of messages in flight.
SELECT requested.place, part.qp IS NOT NULL AS is_used, mq.now_ms() AS now, (
    SELECT eligible_at FROM mq.fifo_group WHERE qp = requested.qp AND eligible_at < 1::bigint << 61 ORDER BY eligible_at LIMIT 1
) AS visible_at
FROM unnest($1::bigint[]) WITH ORDINALITY AS requested (qp, place)
    LEFT JOIN mq.part ON part.qp = requested.qp AND NOT part.retired
