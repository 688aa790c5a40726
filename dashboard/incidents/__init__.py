"""An incident, as a page, as a file and as a call."""
