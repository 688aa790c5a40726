"""Sources, their keys, and refused reports: the page and the API calls."""
