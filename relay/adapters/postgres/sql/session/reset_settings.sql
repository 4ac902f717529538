-- Undo every SET of a function.
RESET ALL
