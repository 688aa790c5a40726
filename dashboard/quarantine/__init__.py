"""The page of quarantined jobs. A row of it is built in `dashboard.failures.quarantine`."""
