"""The desk itself: its overview and health, retention of what it stores, releases, and the rotation of its keys."""
