"""The page of the demo: its partner, its load, its incident and its pager."""
