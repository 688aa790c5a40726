"""`manage.py groups | alerts | silences | depth`: the acts of the pages, and the answers of the API, from a terminal."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.utils import timezone

from jobs_admin import alerts
from jobs_admin.models import Alert, AuditEvent, DepthSample, Group, Release, Rule, Silence
from tests.kit.alerts import create_alert
from tests.kit.depths import create_samples, roll
from tests.kit.failures import bury
from tests.kit.groups import group
from tests.kit.up import ROOT

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]
HOSTILE = "\x1b[31m\x9b2J\u202ered\ufeff"


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def answer(*arguments: str):
    return json.loads(run(*arguments, "--json"))


def type_command(capsys, name: str, *arguments: str) -> str:
    """Run a command as a shell does: the words of its search are no options."""
    load_command_class(get_commands()[name], name).run_from_argv(["manage.py", name, *arguments])
    return capsys.readouterr().out


@pytest.fixture
def names(db) -> list[str]:
    found = []
    for n in range(3):
        one = group(f"Error{n}")
        bury(n + 1, group=one)
        found.append(one.fingerprint)
    return found


@pytest.fixture
def alert(db) -> Alert:
    Rule.objects.all().delete()
    Rule.objects.create(name="Emails die", metric="dead", source="shop", threshold=2, for_s=0)
    bury(3)
    alerts.judge(timezone.now())
    return Alert.objects.get()


# -- groups -----------------------------------------------------------------------------------------------------------


def test_groups_are_listed_and_shown_as_the_api_answers(call_api, names):
    assert answer("groups", "list", "--sort", "dead") == call_api("GET", "groups", order="dead").json()
    assert answer("groups", "show", names[1]) == call_api("GET", f"groups/{names[1]}").json()
    first = answer("groups", "list", "--sort", "dead", "--limit", "1")
    following = answer("groups", "list", "--sort", "dead", "--after", first["next"])
    assert [row["fingerprint"] for row in (*first["items"], *following["items"])] == names[::-1]
    table = run("groups", "list", "error:Error1").splitlines()
    assert len(table) == 2 and table[1].split()[:4] == [names[1], "new", "2", "0"] and "Error1" in table[1]
    assert f"{names[2]}  Error2" in run("groups", "show", names[2])


def test_a_search_of_groups_needs_no_quotes(names, capsys):
    found = type_command(capsys, "groups", "list", "-error:Error1", "-error:Error2", "--limit", "5", "--state=new")
    assert names[0] in found and not any(name in found for name in names[1:])
    assert "No matching groups" in type_command(capsys, "groups", "list", "queue:nowhere")


def test_groups_are_resolved_muted_assigned_and_all_is_undone(names, django_user_model):
    django_user_model.objects.create_user("ann")
    done = run("groups", "resolve", *names[:2], "--reason", "fixed in 2026.11")
    assert done.startswith("2 groups resolved.\nUndo: python3 manage.py groups undo ")
    assert [g.state for g in Group.objects.order_by("pk")] == ["resolved", "resolved", "new"]
    event = AuditEvent.objects.filter(act="group.change").first()
    assert event.actor.endswith("(terminal)") and event.reason == "fixed in 2026.11"
    assert run("groups", "undo", done.split()[-1]) == "2 groups restored.\n"
    muted = answer("groups", "mute", names[0], "--for", "2h", "--count", "10")
    assert muted["changed"] == [names[0]] and muted["receipt"]
    found = answer("groups", "show", names[0])
    assert (found["state"], found["muted_until_count"]) == ("muted", 10) and found["muted_until"]
    assert run("groups", "reopen", names[0]).startswith("1 group reopened.")
    assert run("groups", "assign", names[0], "--to", "ann").startswith("1 group assigned.")
    assert [row["fingerprint"] for row in answer("groups", "list", "--assignee", "ann")["items"]] == [names[0]]
    assert run("groups", "unassign", *names).startswith("1 group unassigned; 2 groups had no change.")
    assert answer("groups", "list", "--unassigned")["count"] == 3
    run("groups", "note", names[0], "--text", "ask billing")
    run("groups", "runbook", names[0], "--url", "https://wiki.example/x")
    shown = run("groups", "show", names[0])
    assert "ask billing" in shown and "https://wiki.example/x" in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "v3-none"), "Group not found"),
        (("resolve", "v3-none"), "Group not found: v3-none. Nothing was changed."),
        (("assign", "NAME", "--to", "zoe"), "No active user 'zoe'. Nothing was changed."),
        (("mute", "NAME", "--for", "soon"), "'soon' is not a duration such as 90s, 30m, 8h or 7d"),
        (("mute", "NAME", "--until", "2020-01-01"), "must be a future time"),
        (("mute", "NAME", "--count", "0"), "muted_until_count: .*greater than or equal to 1"),
        (("runbook", "NAME", "--url", "javascript:x"), "The URL must start with http"),
        (("note", "NAME", "--text", "x" * 10_001), "note: .*at most 10000"),
        (("undo", "1-2"), "Nothing left to undo"),
        (("list", "--sort", "name"), "invalid choice: 'name'"),
        (("list", "--after", "x"), "--after is not a cursor of this order"),
    ],
)
def test_a_wrong_word_about_groups_is_refused_in_a_sentence(names, arguments, sentence):
    with pytest.raises(CommandError, match=sentence):
        run("groups", *(names[0] if word == "NAME" else word for word in arguments))
    assert not AuditEvent.objects.exists()


# -- alerts and silences ----------------------------------------------------------------------------------------------


def test_alerts_are_listed_and_shown_as_the_api_answers(call_api, alert):
    past = create_alert(alert.rule, "resolved", subject="sms", resolved_at=timezone.now())
    assert answer("alerts", "list", "--state", "all") == call_api("GET", "alerts").json()
    assert [row["id"] for row in answer("alerts", "list", "--source", "shop")["items"]] == [alert.pk]
    assert [row["id"] for row in answer("alerts", "list", "--state", "resolved")["items"]] == [past.pk]
    shown, expected = answer("alerts", "show", str(alert.pk)), call_api("GET", f"alerts/{alert.pk}").json()
    assert shown.keys() == expected.keys() and shown["events"] == expected["events"]
    table = run("alerts", "list").splitlines()
    assert len(table) == 2 and table[1].split()[:3] == [str(alert.pk), "firing", "warning"]
    assert "has 3 dead jobs (threshold: 2); Emails die" in table[1]
    text = run("alerts", "show", str(alert.pk))
    assert text.startswith(f"#{alert.pk} firing warning  ") and "Timeline\n" in text and "Emails die" in text
    assert run("alerts", "list", "--queue", "nowhere") == "No open alerts match.\n"


def test_an_alert_is_acknowledged_alone_or_with_its_notification_and_that_is_undone(alert):
    other = create_alert(alert.rule, subject="sms", told_with=alert)
    number = str(alert.pk)
    done = run("alerts", "acknowledge", number, "--only-this", "--comment", "mine")
    assert done == f"#{number} is acknowledged.\nUndo: python3 manage.py alerts unacknowledge {number}\n"
    other.refresh_from_db()
    assert other.state == "firing" and AuditEvent.objects.get(act="alert.acknowledge").reason == "mine"
    with pytest.raises(CommandError, match=r"Already acknowledged by .* \(terminal\) at .*Nothing was changed"):
        run("alerts", "acknowledge", number)
    assert run("alerts", "unacknowledge", number) == f"#{number} is no longer acknowledged.\n"
    assert answer("alerts", "acknowledge", number)["changed"] == [alert.pk, other.pk]
    assert answer("alerts", "unacknowledge", number)["changed"] == [alert.pk, other.pk]


def test_a_silence_is_added_listed_as_the_api_answers_and_ended(call_api, alert):
    made = run("silences", "add", "--source", "shop", "--queue", "web*", "--for", "2h", "--comment", "partner down")
    silence = Silence.objects.get()
    assert made.startswith(f"Silence {silence.pk}: source shop, queue web* until ")
    assert timedelta(minutes=119) < silence.ends_at - silence.starts_at <= timedelta(hours=2)
    assert answer("silences", "list") == call_api("GET", "silences").json()
    assert "source shop, queue web*  partner down" in run("silences", "list")
    alerts.judge(timezone.now() + timedelta(seconds=5))
    assert answer("alerts", "list", "--state", "silenced")["count"] == 1
    assert run("silences", "end", str(silence.pk)) == (
        f"Silence {silence.pk} has ended. Matching alerts send notifications again.\n"
    )
    assert run("silences", "list") == "No silence is active or scheduled.\n"
    assert answer("silences", "list", "--ended") == call_api("GET", "silences", over="true").json()
    tomorrow = f"{timezone.now() + timedelta(days=1):%Y-%m-%dT%H:%M}"
    of_alert = answer("silences", "add", "--alert", str(alert.pk), "--until", tomorrow, "--comment", "x")
    assert of_alert["matchers"] == {"alert": alert.pk, "source": "shop"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("alerts", "show", "99"), "No such alert"),
        (("alerts", "acknowledge", "99"), "No such alert"),
        (("alerts", "acknowledge", "one"), "'one' is not a number from 1"),
        (("alerts", "acknowledge", "9" * 30), "is not a number from 1"),
        (("alerts", "list", "--state", "open", "--after", "x"), "--after is not a cursor"),
        (("alerts", "list", "--after", "٣"), "--after is not a cursor"),
        (("alerts", "list", "--after", "1" * 30), "--after is not a cursor"),
        (("silences", "add", "--for", "2h", "--comment", "x"), "Give at least one matcher"),
        (("silences", "add", "--source", "shop", "--for", "31d", "--comment", "x"), "within 30 days"),
        (
            ("silences", "add", "--source", "shop", "--until", "today", "--comment", "x"),
            "'today' is not a time such as",
        ),
        (("silences", "add", "--source", "shop", "--comment", "x"), "one of the arguments --for --until is required"),
        (("silences", "add", "--source", "shop", "--for", "1h", "--comment", " "), "Enter a reason of 1 to 500"),
        (("silences", "add", "--queue", "x", "--exact", "rule", "--for", "1h", "--comment", "x"), "exact must be"),
        (("silences", "end", "99"), "No such silence"),
    ],
)
def test_a_wrong_word_about_alerts_is_refused_in_a_sentence(arguments, sentence):
    with pytest.raises(CommandError, match=sentence):
        run(*arguments)
    assert not AuditEvent.objects.exists()


# -- depth ------------------------------------------------------------------------------------------------------------


def test_depths_are_listed_and_their_history_shown_as_the_api_answers(call_api):
    now = timezone.now().replace(microsecond=0)
    create_samples(now - timedelta(minutes=30), 170)
    roll(now)
    Release.objects.create(source="shop", version="v2", at=now - timedelta(minutes=10))
    assert answer("depth", "list") == call_api("GET", "queues").json()
    assert run("depth", "list").splitlines()[1].split()[:2] == ["shop", "emails"]
    ends = {"since": now - timedelta(hours=1), "until": now - timedelta(minutes=5)}
    span = {name: f"{at:%Y-%m-%dT%H:%M:%SZ}" for name, at in ends.items()}
    options = [f"--{name}={value}" for name, value in span.items()]
    expected = call_api("GET", f"depth?{urlencode({'source': 'shop', 'queue': 'emails', **span})}").json()
    assert len(expected["series"]) == 150 and answer("depth", "history", "shop", "emails", *options) == expected
    lines = run("depth", "history", "shop", "emails", *options).splitlines()
    assert lines[0].startswith("TIME (UTC)  ") and lines[0].endswith("FAILED/MIN  OK/MIN")
    assert 6 <= sum(line.startswith(f"{now:%Y}-") for line in lines) < 60
    assert any(line.startswith("No data ") for line in lines) and lines[-1].endswith(" release v2")
    assert len(answer("depth", "history", "shop", "emails", "--last", "10m", "--points", "20")["series"]) <= 20


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("shop", "nowhere"), "Queue not found"),
        (("shop", "emails", "--points", "1"), "--points must be from 2 to 1,000"),
        (("shop", "emails", "--since", "2999-01-01"), "since must be before until"),
        (("shop", "emails", "--last", "1w"), "'1w' is not a duration"),
        (("shop", "emails", "--last", "999999d"), "'999999d' is longer than 3660d"),
    ],
)
def test_a_wrong_word_about_depth_is_refused_in_a_sentence(arguments, sentence):
    create_samples(timezone.now() - timedelta(minutes=5), 6)
    with pytest.raises(CommandError, match=sentence):
        run("depth", "history", *arguments)


# -- all of them ------------------------------------------------------------------------------------------------------


def test_a_read_only_desk_shows_everything_and_changes_nothing(alert, names, settings):
    made = answer("silences", "add", "--source", "shop", "--for", "2h", "--comment", "x")
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    for act in (
        ("groups", "resolve", names[0]),
        ("groups", "undo", "1-2"),
        ("alerts", "acknowledge", str(alert.pk)),
        ("alerts", "unacknowledge", str(alert.pk)),
        ("silences", "add", "--source", "shop", "--for", "2h", "--comment", "x"),
        ("silences", "end", str(made["id"])),
    ):
        with pytest.raises(CommandError, match="read-only"):
            run(*act)
    assert Group.objects.filter(state="new").count() == 3 and Silence.objects.count() == 1
    for reading in (("groups", "list"), ("groups", "show", names[0]), ("alerts", "list"), ("silences", "list")):
        assert run(*reading)


def test_a_hostile_name_moves_no_cursor(capsys, alert):
    one = group(HOSTILE, HOSTILE, note=HOSTILE)
    bury(1, group=one, queue=HOSTILE, tenant=HOSTILE)
    Rule.objects.update(name=HOSTILE)
    create_samples(timezone.now() - timedelta(minutes=1), 3)
    DepthSample.objects.update(queue=HOSTILE, is_reachable=False, why=HOSTILE)
    run("silences", "add", "--queue", HOSTILE, "--for", "2h", "--comment", HOSTILE)
    for reading in (
        ("groups", "list", f'"{HOSTILE}"'),
        ("groups", "show", one.fingerprint),
        ("alerts", "list"),
        ("alerts", "show", str(alert.pk)),
        ("silences", "list"),
        ("depth", "list"),
        ("depth", "history", "shop", HOSTILE),
    ):
        call_command(*reading)
        printed = "".join(capsys.readouterr())
        assert printed and not set(printed) & set("\x1b\x9b\u202e\ufeff"), reading


@pytest.mark.parametrize("name", ["failure", "groups"])
def test_a_command_leaves_the_calls_in_the_order_of_their_addresses(name):
    """A call that is spelt out comes before one that takes names in its place, whatever is imported first."""
    program = f"""
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
import django; django.setup()
import dashboard.management.commands.{name}
from django.urls import resolve
print(resolve("/api/groups/rules").url_name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "list_grouping_rules\n", done.stderr


def test_a_failure_without_an_act_names_the_command(capsys):
    with pytest.raises(SystemExit):
        type_command(capsys, "failure", "5")
    assert capsys.readouterr().err == "Name what to do: `python3 manage.py failure show 5`, `why` or `compare`.\n"
