-- Claims (core/claims.py): sources, what they have bound, and where that stands.

-- A reader of a queue (by its incarnation). What was acknowledged is a number; "lost" is what the last acknowledgement
-- answered (JSON), so that it can be repeated.
CREATE TABLE source (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL,
    name TEXT NOT NULL,
    consumer TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    acknowledged INTEGER NOT NULL,
    last INTEGER NOT NULL,
    lost TEXT NOT NULL,
    hold_s INTEGER NOT NULL,
    lease_s INTEGER NOT NULL,
    beat_at_ms INTEGER NOT NULL,
    UNIQUE (queue, name)
);

-- A claim; without a source it was closed, and goes when its messages have come back. "shards" and "filled" are how many
-- shards of ungrouped messages there are and how many messages the last of them has, until the claim is whole.
CREATE TABLE claim (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    source INTEGER,
    queue INTEGER NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    messages INTEGER NOT NULL,
    grouped INTEGER NOT NULL,
    shards INTEGER NOT NULL,
    filled INTEGER NOT NULL,
    bound_at_ms INTEGER NOT NULL
);

-- The messages of a claim: all those at positions from "first" to "last". They have leases of their own ("leased") or,
-- where they had never been received and name no group, none. Those of groups have shard -1: their groups tell.
CREATE TABLE claim_range (
    first INTEGER PRIMARY KEY,
    last INTEGER NOT NULL,
    claim INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    leased INTEGER NOT NULL
);

CREATE INDEX claim_shard ON claim_range (claim, shard, first);

-- Whether a message stands at each of the lane's direct positions behind the last one received.
ALTER TABLE lane ADD COLUMN dense INTEGER NOT NULL DEFAULT 1;

UPDATE lane SET dense = 0;
