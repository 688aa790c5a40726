"""Backup and restore of a desk: one ZIP file with its database, the data that only its store has, and its keys.

A backup reads the desk's settings and writes the file; a restore returns the desk to the time of the file.
"""
