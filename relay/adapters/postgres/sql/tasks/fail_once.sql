-- As tasks/fail, at the end of a function's transaction. If the claim is lost, this divides by zero: the error stops the
-- COMMIT that was sent together with it.
WITH failed AS (
--+ fail
    RETURNING id)
SELECT 1 / count(*) FROM failed
