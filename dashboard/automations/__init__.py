"""Automations: their list, form, diary and acts."""
