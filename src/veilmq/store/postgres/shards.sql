-- Several databases as one store: the control plane of it. What is said of the home is asked there alone.

-- name: identity
-- Of each: what it knows of itself.
SELECT name, value FROM mq.setting WHERE name IN ('store', 'store_place', 'receipt_key', 'token_key')

-- name: members
-- Of the home: the other databases.
SELECT place, url, removed FROM mq.database ORDER BY place

-- name: lock_members
-- Of the home: has others wait who change that.
SELECT value FROM mq.setting WHERE name = 'store' FOR UPDATE

-- name: put_member
INSERT INTO mq.database (place, url) VALUES ($1, $2) ON CONFLICT (place) DO UPDATE SET url = excluded.url

-- name: forget_member
DELETE FROM mq.database WHERE place = $1

-- name: remove_member
-- Of the home: no queue gets this place any more.
UPDATE mq.database SET removed = true WHERE place = $1

-- name: drop_places
-- Of the home: waits for those who make queues there.
DELETE FROM mq.shard_of WHERE place = $1

-- name: leave
DELETE FROM mq.setting WHERE name IN ('store', 'store_place', 'receipt_key', 'token_key')

-- name: is_waiting
-- Of each: whether the outbox has messages for the place $1, or for any (null).
SELECT EXISTS (
    SELECT FROM mq.outbox WHERE ($1::smallint IS NULL OR place = $1)
        AND (seqs <> '{}' OR EXISTS (SELECT FROM mq.message WHERE message.qp = outbox.qp))
)

-- name: has_events
-- Whether there are events that are not exported, or will be when what is in flight in purged and deleted queues has ended.
SELECT EXISTS (SELECT FROM mq.event)
    OR EXISTS (SELECT FROM mq.event_batch WHERE number > (SELECT exported FROM mq.event_state))
    OR EXISTS (SELECT FROM mq.part WHERE retired AND log_queue IS NOT NULL)

-- name: locate
-- Of the home: the place of a queue. (Queues of the home need no row: it may have been the only database once.)
SELECT place FROM mq.shard_of WHERE name = $1 UNION ALL SELECT 0 FROM mq.queue WHERE name = $1 LIMIT 1

-- name: loads
-- Of the home: how many queues each place has; no row for none.
SELECT place, count(*) AS queues FROM mq.shard_of GROUP BY place

-- name: reserve
-- Of the home: gives a queue a place, unless it has one: $2, or the home where it is already, or if the database at $2 was removed.
WITH member AS (SELECT place FROM mq.database WHERE place = $2 AND NOT removed FOR SHARE), here AS (SELECT 0 FROM mq.queue WHERE name = $1)
INSERT INTO mq.shard_of (name, place) SELECT $1::text, coalesce((TABLE here), (TABLE member), 0)
ON CONFLICT (name) DO NOTHING

-- name: hold_place
-- Of the home: the place of a queue, which stays as long as the transaction.
SELECT place FROM mq.shard_of WHERE name = $1 FOR SHARE

-- name: note_own
-- Of the home: what it had before there were others.
INSERT INTO mq.shard_of (name, place) SELECT name, 0 FROM mq.queue ON CONFLICT (name) DO NOTHING

-- name: placed
-- Of the home: the next $3 names behind $2 of those whose place is $1.
SELECT name FROM mq.shard_of WHERE place = $1 AND name > $2 ORDER BY name LIMIT $3

-- name: take_places
-- Of the home: those of the names $1 whose place is $2, for this transaction to remove; none that somebody makes the queue of.
SELECT name FROM mq.shard_of WHERE name = ANY($1::text[]) AND place = $2 FOR UPDATE SKIP LOCKED

-- name: drop_places_of
DELETE FROM mq.shard_of WHERE name = ANY($1::text[])

-- name: unused
-- Of each: those of the names $1 that neither a queue has nor one had just now.
SELECT name FROM unnest($1::text[]) AS asked (name)
WHERE NOT EXISTS (SELECT FROM mq.queue WHERE queue.name = asked.name)
    AND NOT EXISTS (SELECT FROM mq.pause WHERE kind = 'deleted' AND pause.name = asked.name)

-- name: next_queues
-- Of each: the next $2 queues behind the name $1.
SELECT name, queue_id FROM mq.queue WHERE name > $1 ORDER BY name LIMIT $2

-- name: placed_elsewhere
-- Of the home: those of the names $1 that it looks for at another place than $2. (Queues of the home need no row.)
SELECT name FROM unnest($1::text[]) AS asked (name) LEFT JOIN mq.shard_of USING (name) WHERE coalesce(place, 0) <> $2

-- name: still_there
-- Of each: those of the queues $1, by their numbers, that are there.
SELECT name FROM mq.queue WHERE queue_id = ANY($1::bigint[]) ORDER BY name
