"""Backup and restore of a desk: one ZIP file with its database, what only its store holds, and its keys.

Enters: the settings of the desk and a path; leaves: the file, or the desk as it was at the time of the file.
"""
