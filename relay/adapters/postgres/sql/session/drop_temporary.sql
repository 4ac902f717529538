-- Drop the temporary tables of a function.
DISCARD TEMP
