-- Do not wait until the commit of this transaction is on disk: for a claim, which a crash of the server may
-- well take back. Whoever held it has lost its connection then, and another claims the row.
SELECT set_config('synchronous_commit', 'off', true)
