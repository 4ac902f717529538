-- Make the row of a circuit at its first failure.
INSERT INTO handler_circuits (subscription)
VALUES (%(subscription)s)
ON CONFLICT (subscription) DO NOTHING
