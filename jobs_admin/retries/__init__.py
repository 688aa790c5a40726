"""Jobs that wait for a retry: where they wait, when they run, and how to reschedule them or change their queue."""
