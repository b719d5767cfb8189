-- What shown times were ahead of store time when a claim was bound: what it has is the same whenever it is read.
ALTER TABLE claim ADD COLUMN ahead_ms INTEGER NOT NULL DEFAULT 0;
