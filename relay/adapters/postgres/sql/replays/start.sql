-- Ask for a replay. Nothing is returned if one of the subscription is running.
INSERT INTO inbox_replays (subscription, since, until, key, event_type, again, rate, actor, note)
VALUES (%(subscription)s, %(since)s, coalesce(%(until)s, clock_timestamp()), %(key)s, %(event_type)s, %(again)s,
        %(rate)s, %(actor)s, %(note)s)
ON CONFLICT (subscription) WHERE state = 'running' DO NOTHING
RETURNING id
