-- ends: 020
-- One model for both dialects: named settings, an index of cooldowns by age, a list of the store's databases, and no unused columns.
-- All functions are created again.

DO $$
DECLARE
    each regprocedure;
BEGIN
    FOR each IN SELECT oid FROM pg_proc WHERE pronamespace = 'mq'::regnamespace LOOP
        EXECUTE format('DROP FUNCTION %s CASCADE', each);
    END LOOP;
END $$;

ALTER TABLE mq.meta RENAME TO setting;
ALTER TABLE mq.setting RENAME key TO name;
ALTER INDEX mq.meta_pkey RENAME TO setting_pkey;
CREATE INDEX pause_age ON mq.pause (kind, begun_at);
ALTER TABLE mq.source DROP lost;
ALTER TABLE mq.subscription DROP CONSTRAINT subscription_topic_id_fkey;

-- The databases of the store; a start with all URLs sets the URLs.
CREATE TABLE mq.database (
    place smallint PRIMARY KEY,
    url text,
    removed boolean NOT NULL DEFAULT false
);
INSERT INTO mq.database (place)
SELECT generate_series(1, convert_from(places.value, 'UTF8')::int - 1) FROM mq.setting AS places, mq.setting AS place
WHERE places.name = 'store_places' AND place.name = 'store_place' AND place.value = '0';
DELETE FROM mq.setting WHERE name = 'store_places';
