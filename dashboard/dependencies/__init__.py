"""Pages of dependencies that failed jobs: the list and the page of one, with links to groups, failures and replays."""
