"""Alert rules: the list and the editor with its preview."""
