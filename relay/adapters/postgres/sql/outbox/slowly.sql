-- Time for a payload of many megabytes, in this transaction.
SET LOCAL statement_timeout = '60s'
