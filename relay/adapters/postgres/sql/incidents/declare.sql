-- From now on the dead letters of a subscription are corrected. Earlier ones are not.
INSERT INTO corrections (subscription)
VALUES (%(subscription)s)
ON CONFLICT (subscription) DO NOTHING
