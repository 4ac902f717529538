-- End the pause of the closing, not that of an operator.
DELETE FROM controls WHERE what = 'publishing' AND name = '' AND act = 'pause' AND reason = %(reason)s RETURNING what
