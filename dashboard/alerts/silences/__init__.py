"""Silences of alerts: the list and the form."""
