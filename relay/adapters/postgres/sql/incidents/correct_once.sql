-- As incidents/correct, at the end of the function's transaction. If another worker was first, this divides by zero: the
-- error stops the COMMIT that was sent together with it.
WITH corrected AS (
--+ correct
    RETURNING id)
SELECT 1 / count(*) FROM corrected
