-- What is done alike to messages of both kinds of queues: each text is made for both, in their words (database.py), and its name
-- begins with standard or ordered then. A key is partition, group and seq, as the first values.

-- name: mark
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
-- To another partition, group and seq: visible there as if it were never received.
UPDATE {table}
SET partition = ?4, grp = ?5, seq = ?6, visible_at = ?7, receive_count = 0, generation = 0, epoch = 0, received_at = NULL,
    first_received_at = NULL, log = 0{together}
WHERE {key};

-- name: find
SELECT o.seq, o.visible_at, o.receive_count, o.generation, o.epoch, o.received_at, o.grp, {lane} FROM {row};

-- name: logged
-- The same, and what an event says of it; a group's number may change, the hash of its name stays.
SELECT o.seq, o.visible_at, o.receive_count, o.generation, o.epoch, o.received_at, o.grp, {lane}, o.log, {hash},
       octet_length(m.body), m.id, m.properties, max(coalesce(m.moved_at_ms, 0), m.seq >> 20)
FROM {message};

-- name: leased
-- As a receive takes it, and generation and time of the receive.
SELECT o.seq, {lane}, {offered}, coalesce(o.visible_at, 0), o.generation, o.received_at FROM {message};
