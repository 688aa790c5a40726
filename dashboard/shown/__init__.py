"""How values look on every page; `{% load redrive %}` gives it to templates."""
