"""What every page needs: the shell, links, text and figures, sessions and rights, and the web server. It imports no noun."""
