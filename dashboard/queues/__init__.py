"""Pages of queues: the list, and one queue with its depth over time."""
