-- The principal that started a move task, and must be allowed to send to where its messages go; null: nothing is checked.

ALTER TABLE mq.move ADD COLUMN starter text;
