"""The audit, undo, and the progress of bulk acts."""
