"""Saved views: the page, the tabs and the API calls."""
