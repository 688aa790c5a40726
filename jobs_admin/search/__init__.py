"""Queries as SQL: the terms looked up in the index, the scope, and the newest matching rows."""
