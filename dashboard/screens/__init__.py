"""What each screen shows, as named values: the templates only place them."""
