"""Sources, their keys, and reports that were refused: the page and the calls."""
