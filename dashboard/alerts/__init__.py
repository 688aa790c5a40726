"""Pages and API calls of alerts: the list, one alert with its acts, runbooks, and alert rules."""
