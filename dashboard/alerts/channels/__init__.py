"""Channels and their deliveries: pages, forms and calls."""
