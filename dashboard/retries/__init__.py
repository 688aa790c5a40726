"""Pages and API calls of rescheduled retries: the preview, the list, and one with its undo."""
