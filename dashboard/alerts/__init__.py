"""Pages of alerts: the list, one alert with its acts, runbooks, and the calls of alerts and their rules."""
