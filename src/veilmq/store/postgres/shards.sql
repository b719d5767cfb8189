-- Several databases as one store. "Home": the statement runs only on the home.

-- name: identity
-- Any: the identity of the database.
SELECT name, value FROM mq.setting WHERE name IN ('store', 'store_place', 'receipt_key', 'token_key')

-- name: members
-- Home: the other databases.
SELECT place, url, removed FROM mq.database ORDER BY place

-- name: lock_members
-- Home: block other changes of the list.
SELECT value FROM mq.setting WHERE name = 'store' FOR UPDATE

-- name: put_member
INSERT INTO mq.database (place, url) VALUES ($1, $2) ON CONFLICT (place) DO UPDATE SET url = excluded.url

-- name: delete_member
DELETE FROM mq.database WHERE place = $1

-- name: remove_member
-- Home: new queues no longer get this place.
UPDATE mq.database SET removed = true WHERE place = $1

-- name: delete_places
-- Home: waits for transactions that create queues there.
DELETE FROM mq.shard_of WHERE place = $1

-- name: delete_identity
DELETE FROM mq.setting WHERE name IN ('store', 'store_place', 'receipt_key', 'token_key')

-- name: is_waiting
-- Any: whether the outbox has messages for the place $1, or for any place (null).
SELECT EXISTS (
    SELECT FROM mq.outbox WHERE ($1::smallint IS NULL OR place = $1)
        AND (seqs <> '{}' OR EXISTS (SELECT FROM mq.message WHERE message.qp = outbox.qp))
)

-- name: has_events
-- Whether there are unexported events, or messages in flight in purged and deleted queues, which will cause some.
SELECT EXISTS (SELECT FROM mq.event)
    OR EXISTS (SELECT FROM mq.event_batch WHERE number > (SELECT exported FROM mq.event_state))
    OR EXISTS (SELECT FROM mq.part WHERE retired AND log_queue IS NOT NULL)

-- name: locate
-- Home: the place of a queue. (Queues of the home need no row, because it may once have been the only database.)
SELECT place FROM mq.shard_of WHERE name = $1 UNION ALL SELECT 0 FROM mq.queue WHERE name = $1 LIMIT 1

-- name: loads
-- Home: the number of queues by place; no row for none.
SELECT place, count(*) AS queues FROM mq.shard_of GROUP BY place

-- name: reserve
-- Home: give a queue a place unless it has one: $2, or the home if the queue is there already or the database at $2 was removed.
WITH member AS (SELECT place FROM mq.database WHERE place = $2 AND NOT removed FOR SHARE), here AS (SELECT 0 FROM mq.queue WHERE name = $1)
INSERT INTO mq.shard_of (name, place) SELECT $1::text, coalesce((TABLE here), (TABLE member), 0)
ON CONFLICT (name) DO NOTHING

-- name: lock_place
-- Home: the place of a queue, locked until the end of the transaction.
SELECT place FROM mq.shard_of WHERE name = $1 FOR SHARE

-- name: register_home_queues
-- Home: record the queues that it had before there were other databases.
INSERT INTO mq.shard_of (name, place) SELECT name, 0 FROM mq.queue ON CONFLICT (name) DO NOTHING

-- name: placed
-- Home: the next $3 names behind $2 of the queues at the place $1.
SELECT name FROM mq.shard_of WHERE place = $1 AND name > $2 ORDER BY name LIMIT $3

-- name: lock_places
-- Home: lock those of the names $1 at the place $2, without queues that are being created.
SELECT name FROM mq.shard_of WHERE name = ANY($1::text[]) AND place = $2 FOR UPDATE SKIP LOCKED

-- name: delete_places_of
DELETE FROM mq.shard_of WHERE name = ANY($1::text[])

-- name: unused
-- Any: those of the names $1 without a queue, and without one that was deleted recently.
SELECT name FROM unnest($1::text[]) AS requested (name)
WHERE NOT EXISTS (SELECT FROM mq.queue WHERE queue.name = requested.name)
    AND NOT EXISTS (SELECT FROM mq.pause WHERE kind = 'deleted' AND pause.name = requested.name)

-- name: next_queues
-- Any: the next $2 queues behind the name $1.
SELECT name, queue_id FROM mq.queue WHERE name > $1 ORDER BY name LIMIT $2

-- name: placed_elsewhere
-- Home: those of the names $1 whose place is not $2. (Queues of the home need no row.)
SELECT name FROM unnest($1::text[]) AS requested (name) LEFT JOIN mq.shard_of USING (name) WHERE coalesce(place, 0) <> $2

-- name: still_there
-- Any: those of the queues with the numbers $1 that exist.
SELECT name FROM mq.queue WHERE queue_id = ANY($1::bigint[]) ORDER BY name
