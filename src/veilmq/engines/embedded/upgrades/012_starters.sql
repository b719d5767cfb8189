-- The principal that started a move task, and must be allowed to send to where its messages go; NULL: nothing is checked.

ALTER TABLE move_task ADD COLUMN starter TEXT;
