-- Set sequences that are behind above the numbers of their tables. Usually none is.
SELECT relay_mend_sequences()
