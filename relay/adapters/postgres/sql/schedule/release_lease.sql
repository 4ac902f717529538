-- Give up the lease, so that the next scheduler need not wait until it expires.
UPDATE scheduler_lease SET expires_at = NULL WHERE holder = %(holder)s
