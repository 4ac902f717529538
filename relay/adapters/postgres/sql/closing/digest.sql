-- How many rows a table has, and a sum over their texts: the same for the same rows in any order.
SELECT count(*), coalesce(sum(hashtextextended(line::text, 0)), 0)::text FROM {table} AS line
