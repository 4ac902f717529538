-- Send a notification to ourselves. If it does not arrive, hints of producers would not either.
SELECT pg_notify(%(channel)s, %(name)s)
