"""Upgrade of a desk to this version: what it would do and what stops it (`checks`), and doing it (`performing`).

Enters: the database as another version left it, and the settings; leaves: findings, or the database of this version.
"""
