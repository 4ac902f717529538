-- Set messages aside until an operator releases them. A back-off without an end keeps them from every claim and sweep,
-- and later messages of their keys behind them. As of a parked message, JetStream gets its acknowledgement: the row holds
-- the message. A claim that has expired goes: its worker can settle nothing any more.
UPDATE inbox_messages
SET next_attempt_at = 'infinity',
    enqueued_at = 'infinity',
    let_go_at = coalesce(let_go_at, clock_timestamp()),
    claim_token = NULL,
    claimed_until = NULL
WHERE message_id = ANY (%(ids)s::uuid[])
