"""Shared parts of all pages: shell, links, text, figures, sessions, rights and the web server.

Imports no other package of the desk.
"""
