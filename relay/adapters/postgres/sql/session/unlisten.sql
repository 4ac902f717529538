-- Stop listening where a function has listened.
UNLISTEN *
