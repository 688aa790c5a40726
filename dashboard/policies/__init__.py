"""Pages of retry policies: those in force, the editor with its pictures, the history, and their calls."""
