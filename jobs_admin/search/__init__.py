"""Queries as SQL: terms in the index, the scope, and the latest matching rows."""
