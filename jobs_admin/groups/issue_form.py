"""URL of the issue tracker's form for a new issue of a group, from the setting `REDRIVE_ISSUE_URL`."""

from __future__ import annotations

from datetime import UTC

from jobs_admin import config
from jobs_admin.core.url_template import cut, fill
from jobs_admin.groups.group_detail import GroupDetail


def create_issue_url(found: GroupDetail, url: str) -> str:
    """Return the form's URL; "" if no template is set, or the group has an issue. `url`: of the group's page.

    Texts are cut so that it has at most 8,000 characters, which web servers accept.
    """
    group, template = found.group, config.setting("ISSUE_URL")
    if group.issue_url or not template:
        return ""
    counted = f"{'Jobs' if found.is_partial else 'Failed attempts'}: {found.count:,}; dead jobs: {found.dead:,}"
    seen = f"First seen {group.first_seen.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    error = [group.error_type, group.message[:300], group.culprit and f"in {group.culprit}"]
    body = [*(cut(part, 1_500) for part in error), f"{seen}. {counted}.", url]
    values = {"title": cut(group.title[:200], 1_500), "body": "\n\n".join(part for part in body if part), "url": url}
    return fill(template, values)
