-- Incidents that an older release recorded under the key of another death: they stay, as unconfirmed, under a key of
-- their own.
UPDATE dead_letters
SET message_id = gen_random_uuid(), occurrence = 1, class = 'unconfirmed',
    reason = left('unconfirmed: it is not how the message died; the letter says: ' || reason, 2000),
    originals = jsonb_build_object('id', message_id::text) || coalesce(originals, '{}')
WHERE id = ANY (%(ids)s::bigint[])
