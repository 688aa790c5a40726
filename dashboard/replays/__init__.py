"""Pages of replays: the preview, the list, one replay while it runs, the acts on it, and their calls."""
