"""`{% load redrive %}`: tags and filters of the templates. Each is defined in `dashboard.web`."""

from __future__ import annotations

from django import template

from dashboard.web.figures import ago, clock, duration, number, percent
from dashboard.web.links import is_web, url_of
from dashboard.web.moments import in_zone, zone_id, zone_name
from dashboard.web.pictures import icon, share, sparkline, state
from dashboard.web.shell import cached, command, guard_state, new_events, shell, stale_state, switcher, toasts
from dashboard.web.text import dotted, visible, visible_text, with_code

register = template.Library()

for shown in (ago, clock, duration, in_zone, number, percent, dotted, visible, visible_text, with_code, is_web, url_of):
    register.filter(shown)
for drawn in (zone_id, zone_name, icon, state, sparkline, share, cached, command, guard_state, stale_state):
    register.simple_tag(drawn)
for about_the_asker in (new_events, shell, switcher, toasts):
    register.simple_tag(about_the_asker, takes_context=True)
