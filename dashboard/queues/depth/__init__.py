"""Depth of a queue over time: the picture and the call."""
