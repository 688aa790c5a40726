"""Pages and API calls of replays: the preview, the list, one replay while it runs, and its acts."""
