"""Rules of grouping: merge, split and ignore, each previewed before it is saved."""
