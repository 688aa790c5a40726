"""The page of the demo: partner, load, incident and pager."""
