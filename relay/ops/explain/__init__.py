"""The life of one message, across contexts: `gathering` finds its rows, `tree` makes steps of them."""
