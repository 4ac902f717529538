-- Settle a chunk, each message by its own verdict. Without error and delay: as inbox/mark_processed. With both: as
-- inbox/record_error. With a kind: as inbox/reject, which keeps the claim until the dead letter is stored.
-- Returns the messages whose claim was not lost.
UPDATE inbox_messages AS i
SET processed_at = CASE WHEN v.error IS NULL THEN greatest(clock_timestamp(), i.received_at) END,
    last_error = coalesce(v.error, i.last_error),
    attempt_log = CASE WHEN v.note IS NULL THEN i.attempt_log ELSE relay_noted(i.attempt_log,
        v.note::jsonb || jsonb_build_object('n', i.attempts, 'round', i.requeues, 'at', clock_timestamp(),
                                            'claim', i.claim_token, 'next', clock_timestamp() + v.delay)) END,
    attempts = i.attempts - v.uncounted,
    dead_letter_reason = CASE WHEN v.kind IS NULL THEN i.dead_letter_reason ELSE v.error END,
    dead_letter_class = coalesce(v.kind, i.dead_letter_class),
    next_attempt_at = clock_timestamp() + v.delay,
    enqueued_at = coalesce(clock_timestamp() + v.delay, i.enqueued_at),
    claim_token = CASE WHEN v.kind IS NULL THEN NULL ELSE i.claim_token END,
    claimed_until = CASE WHEN v.kind IS NULL THEN NULL ELSE i.claimed_until END
FROM unnest(%(ids)s::uuid[], %(errors)s::text[], %(kinds)s::text[], %(delays)s::interval[], %(uncounted)s::int[],
            %(notes)s::text[]) AS v (message_id, error, kind, delay, uncounted, note)
WHERE i.message_id = v.message_id AND i.claim_token = %(token)s AND num_nonnulls(i.processed_at) = 0
  AND (v.error IS NOT NULL OR i.dead_letter_reason IS NULL)
RETURNING i.message_id
