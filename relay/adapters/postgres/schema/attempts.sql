-- What is known of the attempts at a row, the oldest first, at most twenty: relay/domain/attempts.py. It is written by
-- the statements that record a failure, and by that of a success after failures. NULL almost everywhere.

-- The notes with one more. Any program may have written something else there. STABLE, as the function of JSON that it
-- calls: otherwise the planner would not put its text in the place of a call.
CREATE FUNCTION relay_noted(attempt_log JSONB, attempt JSONB)
RETURNS JSONB LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN attempt_log IS NULL OR jsonb_typeof(attempt_log) <> 'array' THEN '[]'
            WHEN jsonb_array_length(attempt_log) >= 20
            THEN jsonb_path_query_array(attempt_log, '$[last - 18 to last]')
            ELSE attempt_log END || jsonb_build_array(attempt);

-- The notes without their texts, for the life of a message.
CREATE FUNCTION relay_attempts_in_short(attempt_log JSONB)
RETURNS JSONB LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN jsonb_typeof(attempt_log) = 'array' THEN (
  SELECT jsonb_agg(CASE WHEN jsonb_typeof(attempt) = 'object' THEN attempt - '{error,stack,release}'::text[] END)
  FROM jsonb_array_elements(attempt_log) AS attempt) END;
