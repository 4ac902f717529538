-- This transaction commits without waiting for the disk. The next commit that waits takes it along.
SELECT set_config('synchronous_commit', 'off', true)
