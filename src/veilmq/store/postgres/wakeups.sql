-- How nodes tell each other that there is something to come for, and how one looks by itself.

-- name: notify
SELECT pg_notify('veilmq', each) FROM unnest($1::text[]) AS each

-- name: awaited
-- Of each partition $1 of a standard queue with a retention of $2 ms: whether it is in use, and when the next message behind the
-- marks $3 (see node.py; null: behind none) is, or becomes, visible.
SELECT asked.place, part.qp IS NOT NULL AS is_used, clock.now, (
    SELECT min(first.visible_at) FROM unnest(part.priorities) AS of_part (priority), LATERAL (
        SELECT msg.visible_at FROM mq.msg
        WHERE msg.qp = asked.qp AND msg.priority = of_part.priority AND msg.visible_at < 1::bigint << 61
            AND (msg.visible_at, msg.seq) > (
                greatest(($3::bigint[])[of_part.priority], clock.now - asked.retention), coalesce(($3::bigint[])[of_part.priority + 16], -1)
            )
            AND msg.sent_at > clock.now - asked.retention
            AND (msg.sent_at > part.ended_until OR msg.seq >= part.ended_before)
        ORDER BY msg.visible_at LIMIT 1
    ) AS first
) AS visible_at
FROM (SELECT mq.now_ms() AS now) AS clock, unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS asked (qp, retention, place)
    LEFT JOIN mq.part ON part.qp = asked.qp AND NOT part.retired

-- name: awaited_groups
-- The same of partitions of FIFO queues, whose groups know, also when retention ends what is in flight.
SELECT asked.place, part.qp IS NOT NULL AS is_used, mq.now_ms() AS now, (
    SELECT eligible_at FROM mq.fifo_group WHERE qp = asked.qp AND eligible_at < 1::bigint << 61 ORDER BY eligible_at LIMIT 1
) AS visible_at
FROM unnest($1::bigint[]) WITH ORDINALITY AS asked (qp, place)
    LEFT JOIN mq.part ON part.qp = asked.qp AND NOT part.retired
