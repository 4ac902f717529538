-- Take the cancelling of tasks back: they wait again, with the time that they are due and the attempts that they had.
UPDATE task_outbox
SET status = 'pending', finished_at = NULL, delivered_at = NULL, enqueued_at = NULL
WHERE id = ANY (%(ids)s::uuid[])
