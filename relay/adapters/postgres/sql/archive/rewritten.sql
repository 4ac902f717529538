-- The files of batches that were replaced by others.
SELECT ids[1] FROM audit_log WHERE action = 'archive.redact'
