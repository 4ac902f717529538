-- End a pause or a limit.
DELETE FROM controls WHERE what = %(what)s AND name = %(name)s AND act = %(act)s
