-- What the doctor of several databases asks: whether each queue is where the home says.

-- name: next_queues
-- Of each: the next $2 queues behind the name $1.
SELECT name, queue_id FROM mq.queue WHERE name > $1 ORDER BY name LIMIT $2

-- name: placed_elsewhere
-- Of the home: those of the names $1 that it looks for at another place than $2. (Queues of the home need no row.)
SELECT name FROM unnest($1::text[]) AS asked (name) LEFT JOIN mq.shard_of USING (name) WHERE coalesce(place, 0) <> $2

-- name: still_there
-- Of each: those of the queues $1, by their numbers, that are there.
SELECT name FROM mq.queue WHERE queue_id = ANY($1::bigint[]) ORDER BY name
