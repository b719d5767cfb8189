-- ends: 020
-- One model for both dialects: settings have names, cooldowns are found by age, and what nothing reads is gone. All functions
-- are made anew.

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
