-- Restart the idle time-out of a claim. Fails when the claim is lost.
SELECT 1
