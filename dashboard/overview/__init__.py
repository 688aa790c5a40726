"""The overview, and what the command palette offers."""
