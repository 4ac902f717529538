-- Rules of the inbox that many statements share, each written once.
--
-- The planner replaces each call by its text. A rule without a subquery is one expression, as in rules.sql. A rule
-- with a subquery cannot be inlined as an expression, only as a table, so it returns a row where it holds:
-- EXISTS (SELECT FROM relay_its_turn(...)).

-- Whether nobody has claimed the message, and its back-off is over. A job may come a moment early, so a claim is
-- tolerant by `early`. A sweep sends no job early.
CREATE FUNCTION relay_is_free(claimed_until TIMESTAMPTZ, next_attempt_at TIMESTAMPTZ, early INTERVAL)
RETURNS BOOLEAN LANGUAGE sql STABLE PARALLEL SAFE
RETURN (claimed_until IS NULL OR claimed_until < now())
   AND (next_attempt_at IS NULL OR next_attempt_at <= now() + early);

-- Whether a message has a place in the order of its key: it keeps later ones waiting. A dead one does, too, unless it
-- was stepped over. It is the condition of idx_inbox_order.
CREATE FUNCTION relay_holds_key(order_key TEXT, processed_at TIMESTAMPTZ, stepped_over BOOLEAN)
RETURNS BOOLEAN LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN order_key IS NOT NULL AND processed_at IS NULL AND NOT stepped_over;

-- The head of a key: the first message that holds it.
CREATE FUNCTION relay_head(of_subscription TEXT, of_key TEXT)
RETURNS TABLE (message_id UUID, order_seq BIGINT, stream TEXT, dead_lettered_at TIMESTAMPTZ, enqueued_at TIMESTAMPTZ,
               claimed_until TIMESTAMPTZ, next_attempt_at TIMESTAMPTZ)
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT i.message_id, i.order_seq, i.stream, i.dead_lettered_at, i.enqueued_at, i.claimed_until, i.next_attempt_at
  FROM inbox_messages AS i
  WHERE i.subscription = of_subscription AND i.order_key = of_key
    AND relay_holds_key(i.order_key, i.processed_at, i.stepped_over)
  ORDER BY i.order_seq, i.message_id
  LIMIT 1;
END;

-- A row if the head of a key may run: no earlier message of the key can still arrive, and the key is not parked.
CREATE FUNCTION relay_may_run(of_subscription TEXT, of_key TEXT, of_stream TEXT, place BIGINT)
RETURNS SETOF BOOLEAN LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT true
  WHERE place <= (
      SELECT w.stream_seq FROM inbox_watermarks AS w
      WHERE w.subscription = of_subscription AND w.stream = of_stream)
    AND NOT EXISTS (
      SELECT FROM parked_keys AS p
      WHERE p.subscription = of_subscription AND p.order_key = of_key);
END;

-- A row if it is the turn of a message: it is the head of its key, and may run.
CREATE FUNCTION relay_its_turn(id UUID, of_subscription TEXT, of_key TEXT, of_stream TEXT, place BIGINT)
RETURNS SETOF BOOLEAN LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT true
  FROM relay_may_run(of_subscription, of_key, of_stream, place)
  WHERE id = (SELECT head.message_id FROM relay_head(of_subscription, of_key) AS head);
END;

-- A row while another message of the key runs. It is needed only for a message that was requeued: the one that ran in
-- its place may still be running.
CREATE FUNCTION relay_another_runs(id UUID, of_subscription TEXT, of_key TEXT)
RETURNS SETOF BOOLEAN LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT true
  FROM inbox_messages AS other
  WHERE other.subscription = of_subscription AND other.order_key = of_key
    AND relay_holds_key(other.order_key, other.processed_at, other.stepped_over)
    AND other.message_id <> id AND other.claimed_until > now();
END;

-- What a claim writes: it counts the attempt. A rejected message (its dead letter is not stored yet) is claimed
-- without counting: its handler is not called again. The same holds for a message that has used up its attempts: it
-- is rejected with the reason `exhausted`.
CREATE FUNCTION relay_attempt(
  attempts INT, dead_letter_reason TEXT, dead_letter_class TEXT, max_attempts INT, exhausted TEXT
) RETURNS TABLE (counted INT, reason TEXT, class TEXT) LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT CASE WHEN dead_letter_reason IS NULL AND attempts < max_attempts THEN attempts + 1 ELSE attempts END,
         CASE WHEN relay_exhausted(dead_letter_reason, attempts, max_attempts)
              THEN exhausted ELSE dead_letter_reason END,
         CASE WHEN relay_exhausted(dead_letter_reason, attempts, max_attempts)
              THEN 'exhausted' ELSE dead_letter_class END;
END;
