"""Pages of rescheduled retries: the preview, the list, one with its undo, and their calls."""
