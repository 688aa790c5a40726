"""Pages and API calls of groups: the list, one group, and its acts."""
