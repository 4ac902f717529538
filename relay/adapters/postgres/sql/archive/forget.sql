-- Forget messages of a deleted batch, unless they are in a later one, too.
DELETE FROM archived_messages WHERE message_id = ANY (%(ids)s::uuid[]) AND batch <= %(number)s
