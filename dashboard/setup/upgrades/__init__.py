"""Upgrade of a desk to this version: its effects and obstacles (`checks`), and the upgrade itself (`performing`).

It converts the database of another version to this version's; the checks only return findings.
"""
