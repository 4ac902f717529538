-- Large payloads that are not any more what references to them say: their size and digest now. Only these rows are read.
SELECT e.id, octet_length(content), encode(sha256(content), 'hex')
FROM outbox_events AS e
JOIN unnest(%(ids)s::uuid[], %(digests)s::text[]) AS it (id, sha256) USING (id),
LATERAL (SELECT convert_to(e.payload::text, 'UTF8') AS content OFFSET 0) AS now
WHERE encode(sha256(content), 'hex') <> it.sha256
