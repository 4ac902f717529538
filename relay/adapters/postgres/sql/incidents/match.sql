-- What the inbox says about letters: whether an incident has recorded this death, or a dead row confirms it. A row
-- with a verdict counts as dead: its letter is stored before the row is marked.
SELECT place - 1,
       CASE WHEN d.id IS NOT NULL THEN 'known'
            WHEN i.message_id IS NULL THEN 'unknown'
            WHEN i.subscription IS DISTINCT FROM l.subscription THEN 'elsewhere'
            WHEN i.processed_at IS NOT NULL OR num_nonnulls(i.dead_lettered_at, i.dead_letter_reason) = 0 THEN 'alive'
            WHEN i.requeues <> l.occurrence - 1 THEN 'other_death'
            ELSE 'dead' END
FROM unnest(%(message_id)s::uuid[], %(occurrence)s::int[], %(subscription)s::text[]) WITH ORDINALITY
    AS l (message_id, occurrence, subscription, place)
LEFT JOIN dead_letters AS d
    ON d.message_id = l.message_id AND d.occurrence = l.occurrence AND d.subscription = l.subscription
LEFT JOIN inbox_messages AS i ON i.message_id = l.message_id
