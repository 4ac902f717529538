-- Tell producers whether a wake-up hint is useful. Writes only when this changes. A transaction with a hint cannot be
-- prepared for two-phase commit: where the server allows that, there are no hints, and polls find all work.
WITH wanted AS (
    SELECT %(sleeping)s AND current_setting('max_prepared_transactions')::int = 0 AS sleeping
),
told AS (
    UPDATE relay_wakeup SET sleeping = wanted.sleeping FROM wanted WHERE relay_wakeup.sleeping <> wanted.sleeping
)
SELECT sleeping FROM wanted
