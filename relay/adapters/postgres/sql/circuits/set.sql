-- Change a circuit, in the transaction that holds its lock.
UPDATE handler_circuits
SET witnesses = %(witnesses)s::jsonb, since = %(since)s, failed = %(failed)s, opened_at = %(opened_at)s,
    closed_at = %(closed_at)s, reason = %(reason)s, probe_id = %(probe_id)s, probe_at = %(probe_at)s,
    probes = %(probes)s
WHERE subscription = %(subscription)s
