"""The grouping of a group, and grouping rules: previewed, saved, listed, withdrawn."""

from __future__ import annotations

import re

import pytest

from jobs_admin.core.fingerprint import NO_RULES
from jobs_admin.db.grouping_rules import printed
from jobs_admin.models import AuditEvent, Group, GroupRule
from tests.kit.failures import bury
from tests.kit.groups import TRACE, group
from tests.kit.pages import text_of


def two() -> tuple[Group, Group]:
    made = group("Left"), group("Right")
    for one in made:
        bury(2, group=one, error_type=one.error_type, trace=TRACE)
    return made


def merge(*groups: Group) -> dict[str, object]:
    return {"kind": "merge", "groups": [one.fingerprint for one in groups]}


def test_the_page_marks_what_counts_and_shows_why_the_rest_does_not(ann, watched):
    where = group()
    bury(group=where, message="no answer from 10.0.0.17 after 30 s", trace=TRACE)
    answer = ann.get(f"/groups/{where.fingerprint}/why/")
    page, text = answer.content.decode(), text_of(answer)
    assert "<mark>shop/tasks.py in deliver</mark>" in page and 'class="muted">library</span>' in page
    assert (
        '<span class="varies">&lt;ip&gt;</span>' in page
        and "10.0.0.17" in text
        and "the values marked <…> vary" in text
    )


def test_a_message_in_which_nothing_varies_explains_no_mark(ann, watched):
    where = group()
    bury(group=where, message="no such table", trace=TRACE)
    assert "the values marked" not in text_of(ann.get(f"/groups/{where.fingerprint}/why/"))


def test_a_group_page_leads_to_why(ann, watched):
    where = group()
    bury(group=where)
    assert f'href="/groups/{where.fingerprint}/why/"' in ann.get(f"/groups/{where.fingerprint}/").content.decode()


def test_what_a_job_shows_is_shown_not_obeyed(ann, watched):
    where = group("<b>E</b>")
    trace = TRACE.replace("deliver", "<script>x</script>")
    bury(group=where, error_type="<b>E</b>", message="<img src=x onerror=alert(1)> \u202e", trace=trace)
    page = ann.get(f"/groups/{where.fingerprint}/why/").content.decode()
    assert "<script>x" not in page and "<img src=x" not in page and "<b>E" not in page and "\u202e" not in page


def test_a_merge_is_seen_first_and_changes_nothing(otto, watched):
    left, right = two()
    answer = otto.post("/groups/rules/preview/", merge(left, right))
    assert "2 failures of 1 group join the 2" in text_of(answer) and "Nothing has changed yet" in text_of(answer)
    assert not GroupRule.objects.exists() and not AuditEvent.objects.exists()


def test_a_merge_is_saved_listed_and_taken_back(otto, watched):
    left, right = two()
    answer = otto.post("/groups/rules/save/", merge(left, right) | {"note": "one partner"}, follow=True)
    assert answer.redirect_chain == [("/groups/rules/", 302)]
    text = text_of(answer)
    assert "merge 1 group into Left" in text and "one partner" in text and "by otto" in text
    rule = GroupRule.objects.get()
    otto.post(f"/groups/rules/{rule.pk}/withdraw/")
    rule.refresh_from_db()
    assert rule.is_withdrawn and Group.objects.filter(fingerprint=right.fingerprint).exists()


def test_why_shows_the_rules_that_brought_it_here(otto, watched):
    left, right = two()
    assert "Applied rules" not in text_of(otto.get(f"/groups/{left.fingerprint}/why/"))
    otto.post("/groups/rules/save/", {"kind": "ignore", "frame": "shop/tasks.py in deliver"})
    otto.post("/groups/rules/save/", merge(left, right) | {"note": "one partner"})
    text = text_of(otto.get(f"/groups/{left.fingerprint}/why/"))
    assert "the frame shop/tasks.py in deliver is ignored" in text
    assert "1 group merged into this one, by otto one partner" in text


def test_why_shows_which_part_of_a_split_a_failure_is(otto, watched):
    (failure,) = bury(error_type="E", message="gone", tenant="<i>cobalt</i> (north)", group=group("E", "gone"))
    value = printed(failure, NO_RULES).value
    Group.objects.filter(pk=failure.group_id).update(fingerprint=value)
    otto.post("/groups/rules/save/", {"kind": "split", "groups": value, "by": "tenant"})
    page = otto.get(f"/groups/{value}/why/").content.decode()
    assert "its group is split by tenant: &lt;i&gt;cobalt&lt;/i&gt; (north)</span>" in page
    assert "split by tenant, by otto" in page


def test_groups_to_merge_with_are_distinguished(otto, watched):
    where, other = group("Same", culprit="shop/a.py in send"), group("Same", "gone (tenant: cobalt)")
    bury(group=where)
    bury(3, group=other, task="shop.stock")
    text = text_of(otto.get(f"/groups/{where.fingerprint}/why/"))
    assert "Same (tenant: cobalt) gone 3 jobs · task shop.stock" in text


def test_a_merge_names_what_went_in_to_who_sees_all_of_it(otto, vera, watched):
    left, right = two()
    Group.objects.filter(pk=right.pk).update(culprit="shop/b.py in post")
    otto.post("/groups/rules/save/", merge(left, right))
    assert "Right: no answer · shop/b.py in post" in text_of(vera.get("/groups/rules/"))
    bury(source="bank", group=left)
    assert "Right" not in text_of(vera.get("/groups/rules/"))


def test_the_address_of_a_group_is_its_name_too(otto, watched):
    left, right = two()
    requested = {"kind": "merge", "groups": [left.fingerprint, f"http://desk.example/groups/{right.fingerprint}/"]}
    assert "join the" in text_of(otto.post("/groups/rules/preview/", requested))


def test_a_split_and_a_frame_are_seen_first(otto, watched):
    left, _ = two()
    split = otto.post("/groups/rules/preview/", {"kind": "split", "groups": left.fingerprint, "by": "tenant"})
    assert "becomes 1 by tenant" in text_of(split)
    ignore = otto.post("/groups/rules/preview/", {"kind": "ignore", "frame": "shop/tasks.py in deliver"})
    assert ignore.status_code == 200 and "frame" in text_of(ignore)


@pytest.mark.parametrize(
    "requested",
    [{}, {"kind": "merge"}, {"kind": "merge", "groups": "v1-nobody"}, {"kind": "split", "by": "x"}, {"kind": "ignore"},
     {"kind": "ignore", "frame": "*"}, {"kind": "<b>"}, {"kind": "merge", "groups": "\0"}],
)  # fmt: skip
def test_what_cannot_be_a_rule_is_shown(otto, watched, requested):
    two()
    for path, status in (("preview", 422), ("save", 409)):
        answer = otto.post(f"/groups/rules/{path}/", requested)
        assert answer.status_code == status and 'role="alert"' in answer.content.decode()
    assert not GroupRule.objects.exists()


def test_a_viewer_sees_why_and_the_rules_but_makes_none(vera, otto, watched):
    left, right = two()
    otto.post("/groups/rules/save/", merge(left, right))
    page = vera.get(f"/groups/{left.fingerprint}/why/").content.decode()
    assert "Merge with" not in page and "Ignore this frame" not in page
    assert (
        "merge 1 group" in text_of(vera.get("/groups/rules/"))
        and b">Withdraw<" not in vera.get("/groups/rules/").content
    )
    for path in ("preview/", "save/", f"{GroupRule.objects.get().pk}/withdraw/"):
        assert vera.post(f"/groups/rules/{path}", merge(left, right)).status_code == 403


def test_groups_out_of_sight_are_in_no_preview(otto, watched):
    left, _ = two()
    hidden = group("Zircon")
    bury(group=hidden, source="bank", error_type="Zircon", trace=TRACE)
    for requested in (merge(left, hidden), {"kind": "ignore", "frame": "shop/tasks.py in deliver"}):
        answer = otto.post("/groups/rules/preview/", requested)
        assert answer.status_code == 422 and "Zircon" not in text_of(answer) and "bank" not in text_of(answer)


def test_a_rule_about_groups_out_of_sight_is_not_there(otto, ann, watched):
    hidden, other = group("Zircon"), group("Opal")
    bury(group=hidden, source="bank"), bury(group=other, source="bank"), two()
    ann.post("/groups/rules/save/", merge(hidden, other))
    rule = GroupRule.objects.get()
    assert "Zircon" not in text_of(otto.get("/groups/rules/"))
    assert otto.post(f"/groups/rules/{rule.pk}/withdraw/").status_code == 404


def test_a_desk_without_rules_shows_it(ann, watched):
    assert re.search("No grouping rules", text_of(ann.get("/groups/rules/")))


def at_the_field(answer, field: str, sentence: str) -> bool:
    """The page that asked is shown again, with the sentence at its field."""
    page = answer.content.decode()
    marked = re.search(rf'<(?:input|select) id="{field}"[^>]* aria-describedby="([\w-]+)" autofocus>', page)
    message = marked and re.search(rf'id="{marked[1]}" role="alert">.*?</p>', page)
    return answer.status_code == 422 and bool(message) and sentence in message[0]


def test_a_merge_with_nothing_ticked_stays_on_the_page_with_the_sentence_at_the_field(otto, watched):
    left, right = two()
    answer = otto.post("/groups/rules/preview/", {"kind": "merge", "groups": [left.fingerprint, ""]})
    assert "<h1>Grouping</h1>" in answer.content.decode()
    assert at_the_field(answer, "merge-more", "Select at least two groups")
    answer = otto.post("/groups/rules/preview/", {"kind": "merge", "groups": [*merge(left, right)["groups"], "v2-no"]})
    page = answer.content.decode()
    assert at_the_field(answer, "merge-more", "Group v2-no")
    assert f'value="{right.fingerprint}, v2-no"' in page


def test_a_split_or_a_frame_that_is_refused_stays_on_its_page(otto, watched):
    left, _ = two()
    requested = {"kind": "split", "groups": left.fingerprint, "by": "weather"}
    assert at_the_field(otto.post("/groups/rules/preview/", requested), "split-by", "A split must be by one of")
    answer = otto.post("/groups/rules/preview/", {"kind": "ignore", "frame": "*"})
    assert at_the_field(answer, "frame", "matches every frame") and "Grouping rules" in text_of(answer)


def test_the_preview_of_an_ignored_frame_names_it_in_title_sentence_and_button(otto, watched):
    two()
    answer = otto.post("/groups/rules/preview/", {"kind": "ignore", "frame": "*/tasks.py in deliver"})
    page = answer.content.decode()
    for message in (
        r"<title>.*?</title>",
        r"<h1.*?</h1>",
        r'<p class="sub">.*?</p>',
        r'<button[^>]*class="primary">.*?<',
    ):
        assert any("*/tasks.py in deliver" in found for found in re.findall(message, page, re.S)), message


def test_the_preview_of_a_merge_separates_groups_of_one_title(otto, watched):
    left, right = two()
    Group.objects.filter(pk=right.pk).update(
        error_type=left.error_type, message=left.message, culprit="shop/b.py in pay"
    )
    Group.objects.filter(pk=left.pk).update(culprit="shop/a.py in send")
    bury(3, group=right, task="pay_out")
    text = text_of(otto.post("/groups/rules/preview/", merge(left, right)))
    assert "tasks pay_out, shop.deliver · shop/b.py in pay" in text
    assert "task shop.deliver · shop/a.py in send · currently 2" in text


def test_the_link_of_a_group_that_was_split_leads_on_to_its_parts(otto, ann, watched):
    parent, part, other = group("Whole"), group("Part"), group("Hidden")
    bury(2, group=part), bury(1, group=other, source="bank")
    GroupRule.objects.create(
        kind="split", group=parent, by="queue", author="otto", before={"moved": {one.fingerprint: {} for one in (parent, part, other)}}
    )  # fmt: skip
    answer = otto.get(f"/groups/{parent.fingerprint}/")
    page = answer.content.decode()
    assert answer.status_code == 200 and "Group split by queue" in page
    assert f"/groups/{part.fingerprint}/" in page and "Hidden" not in page and other.fingerprint not in page
    assert "now in 2 other groups" in text_of(ann.get(f"/groups/{parent.fingerprint}/"))
    GroupRule.objects.update(is_withdrawn=True)
    assert otto.get(f"/groups/{parent.fingerprint}/").status_code == 404
