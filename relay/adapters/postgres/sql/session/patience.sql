-- How long a statement of this session may take. One that waits for a lock must not keep a probe waiting.
SELECT set_config('statement_timeout', %(limit)s, false)
