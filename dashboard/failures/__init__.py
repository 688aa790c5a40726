"""Pages of failures: the list with its search, one failure with its runs, the acts on one and on many, and their calls."""
