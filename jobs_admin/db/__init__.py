"""Shared database code: statements of many rows, turns of heavy writers, counters, totals and the audit."""
