-- Some settings of the server, in the form of SHOW.
SELECT name, setting FROM pg_settings WHERE name = ANY (%(names)s::text[])
