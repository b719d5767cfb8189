-- Statements that both kinds of queues share. database.py makes two of each, with the words of each kind and the prefix standard_
-- or ordered_. A key is partition, group and seq, the first parameters.

-- name: lease
UPDATE {table}
SET log = ?4, visible_at = ?5, receive_count = receive_count + 1, generation = ?6, epoch = epoch + 1, received_at = ?7,
    first_received_at = coalesce(first_received_at, ?8){together}
WHERE {key};

-- name: delete_as_received
DELETE FROM {table} WHERE {key} AND visible_at = ?4 AND generation = ?5 AND epoch = ?6;

-- name: delete
DELETE FROM {table} WHERE {key};

-- name: change
UPDATE {table} SET visible_at = ?4, epoch = ?5, log = coalesce(?6, log) WHERE {key};

-- name: move
-- To another partition, group and seq, where it is visible and was never received.
UPDATE {table}
SET partition = ?4, grp = ?5, seq = ?6, visible_at = ?7, receive_count = 0, generation = 0, epoch = 0, received_at = NULL,
    first_received_at = NULL, log = 0{together}
WHERE {key};

-- name: find
SELECT o.seq, o.visible_at, o.receive_count, o.generation, o.epoch, o.received_at, o.grp, {lane} FROM {row};

-- name: logged
-- The same, and the data for its event: a group's number may change, the hash of its name does not.
SELECT o.seq, o.visible_at, o.receive_count, o.generation, o.epoch, o.received_at, o.grp, {lane}, o.log, {hash},
       octet_length(m.body), m.id, m.properties, max(coalesce(m.moved_at_ms, 0), m.seq >> 20)
FROM {message};

-- name: leased
-- The columns of a receive, and generation and time of the last receive.
SELECT o.seq, {lane}, {candidate}, coalesce(o.visible_at, 0), o.generation, o.received_at FROM {message};
