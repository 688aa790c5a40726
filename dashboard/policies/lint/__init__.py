"""The page and API call of the lint."""
