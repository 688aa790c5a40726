"""The middleware of `dashboard.settings`."""
