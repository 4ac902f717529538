-- Pause a subscription where its claims look: no message of it is claimed from the commit on.
INSERT INTO handler_circuits (subscription, paused_until)
VALUES (%(name)s, coalesce(%(until)s::timestamptz, 'infinity'))
ON CONFLICT (subscription) DO UPDATE SET paused_until = excluded.paused_until
