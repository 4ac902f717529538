-- Have the upkeep enqueue what is due of a subscription, as after a pause. One that is paused stays so.
INSERT INTO handler_circuits (subscription, paused_until)
VALUES (%(name)s, clock_timestamp())
ON CONFLICT (subscription) DO UPDATE SET paused_until = excluded.paused_until
WHERE coalesce(handler_circuits.paused_until <= clock_timestamp(), true)
