-- What a dead letter carries from the queues before, and the tasks that move dead letters back.

ALTER TABLE message ADD COLUMN receives_before INTEGER;
ALTER TABLE message ADD COLUMN first_received_at_ms INTEGER;

-- Numbers rise with the time of the start. A queue (by its incarnation) has one running task, and a short history.
CREATE TABLE move_task (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL,
    queue INTEGER NOT NULL,
    source TEXT NOT NULL,
    destination TEXT,
    moves_per_s_max INTEGER,
    status TEXT NOT NULL,
    moved INTEGER NOT NULL,
    to_move INTEGER NOT NULL,
    started_at_ms INTEGER NOT NULL,
    next_at_ms INTEGER NOT NULL,
    failure TEXT
);

CREATE INDEX move_task_queue ON move_task (queue, number);
CREATE UNIQUE INDEX move_task_running ON move_task (queue) WHERE status = 'running';
