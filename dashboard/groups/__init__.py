"""Pages of groups: the list, one group, the acts on it, and its calls."""
