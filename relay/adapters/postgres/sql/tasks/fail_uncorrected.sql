-- As tasks/fail, when the application's correction has failed too. That alerts besides.
WITH failed AS (
--+ fail
    RETURNING id, type, queue)
INSERT INTO alerts (class, subject_type, subject, reason, about)
SELECT 'failed_correction', 'task', type, left(%(correction)s, 500), jsonb_build_object('id', id, 'queue', queue)
FROM failed
