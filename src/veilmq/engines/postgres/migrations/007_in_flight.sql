-- How many messages of a partition were in flight when a node last counted them, and when the next count is due. A crash may
-- empty it.
CREATE UNLOGGED TABLE mq.in_flight (
    qp bigint PRIMARY KEY,
    next_at bigint NOT NULL,
    counted int
) WITH (fillfactor = 50);
