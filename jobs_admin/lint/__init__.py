"""Findings about retry settings: the facts of a source, and the rules of `core.lint` over them."""
