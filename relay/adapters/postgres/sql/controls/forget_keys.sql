-- The limit has changed: no key has a slot any more.
DELETE FROM task_rates WHERE starts_with(type, %(rate)s)
