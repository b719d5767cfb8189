-- What was sent lately, in the order of time: the entries of a batch in one row, numbered by its first one. An entry is
-- the key (16 bytes), the message's id (16), its sequence number (8, big-endian) and the number of the entry before
-- whose key has the same first 21 bits (8, big-endian), 0 if there is none.

CREATE TABLE accepted (
    number INTEGER PRIMARY KEY,
    accepted_at_ms INTEGER NOT NULL,
    entries BLOB NOT NULL
);

INSERT INTO accepted (number, accepted_at_ms, entries)
SELECT number, accepted_at_ms, unhex(hex(key) || hex(id) || printf('%016X%016X', sequence, before)) FROM (
    SELECT *, lag(number, 1, 0) OVER (PARTITION BY slot ORDER BY number) AS before FROM (
        SELECT
            *,
            row_number() OVER (ORDER BY accepted_at_ms) AS number,
            ('0x' || hex(substr(key, 1, 3)) ->> '$') >> 3 AS slot
        FROM deduplication
    )
) ORDER BY number;

DROP TABLE deduplication;
