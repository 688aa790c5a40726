"""Pages and API calls of failures: the list with its search, one failure with its runs, and acts on one or many."""
