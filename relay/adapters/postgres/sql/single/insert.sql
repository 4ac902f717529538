-- A receipt with the columns of the specification only.
INSERT INTO inbox_messages (message_id, subject, received_at, processed_at, attempts, last_error)
VALUES (%(message_id)s, %(subject)s, %(received_at)s, %(processed_at)s, %(attempts)s, %(last_error)s)
