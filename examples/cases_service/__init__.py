"""A service for support cases, built of the seven blocks. Its README says which file is which."""
