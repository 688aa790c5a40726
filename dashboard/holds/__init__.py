"""Holds: pausing and resuming queues and tasks, and notes about holds on other pages."""
