"""Pages and API calls of retry policies: policies in force, the editor with charts, and the history."""
