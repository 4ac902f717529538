-- Give up the lead, so that the next scheduler need not wait until its time is over.
UPDATE scheduler_lease SET expires_at = NULL WHERE holder = %(holder)s
