"""Jobs that wait for a retry: where they wait, when they run, and how to move them to another time or queue."""
