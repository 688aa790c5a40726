"""The page and the call of lint."""
