-- Go back to the role and the schemas that the session has been lent with, for the rest of the transaction: there the
-- row of a function is settled.
SELECT set_config('session_authorization', NULL, true), set_config('search_path', %(path)s, true)
