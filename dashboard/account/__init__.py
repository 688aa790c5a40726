"""Account of the logged-in person: second factor and sessions; and the second step of signing in."""
