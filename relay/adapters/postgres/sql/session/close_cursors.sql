-- Close the cursors that a function left open beyond its transaction.
CLOSE ALL
