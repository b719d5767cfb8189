-- Lanes of several kinds, message groups, and messages that were moved from another queue. The new columns are NULL for
-- a message without a group that was sent where it is.

ALTER TABLE lane ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;

ALTER TABLE message ADD COLUMN group_key INTEGER;
ALTER TABLE message ADD COLUMN source TEXT;
ALTER TABLE message ADD COLUMN first_sent_at_ms INTEGER;

-- The messages of a group in their order, and those moved here by when they were first sent, lane by lane.
CREATE INDEX message_group ON message (group_key, position) WHERE group_key IS NOT NULL;
CREATE INDEX message_moved ON message (position >> 41, first_sent_at_ms) WHERE first_sent_at_ms IS NOT NULL;
