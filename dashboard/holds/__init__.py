"""Holds: pausing and resuming a queue or a task, and the notes about it on other pages."""
