"""Sources: accepted ones with keys, those to accept, refused reports; and Connect, with lines to copy per system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST, require_safe

from dashboard.queues.sources import signing as source_signing
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.figures import ago
from dashboard.web.htmx import go, render_page
from dashboard.web.moments import in_zone
from dashboard.web.text import visible, with_code
from dashboard.web.toasts import add_toast
from jobs_admin import config
from jobs_admin.core import service_url
from jobs_admin.core.refused import Refused
from jobs_admin.desk import overview, unconfigured_sources
from jobs_admin.installation import COMMAND
from jobs_admin.models import Failure, RefusedReports, Source, Worker
from jobs_admin.models.access import ADMIN, ADMIN_OF_ALL, EVERY_SOURCE, VIEWER, Viewer
from jobs_admin.models.source import ALIVE_S
from jobs_admin.queues import liveness
from jobs_admin.trust import admission
from jobs_admin.worker.versions import VERSION


@require_safe
@can(ADMIN)
def index(request: HttpRequest) -> HttpResponse:
    context = source_signing.page(request.viewer, timezone.now())
    return render_page(request, "redrive/sources/list.html", context, part="sources")


@require_POST
@can(ADMIN_OF_ALL)
def accept(request: HttpRequest, source: str) -> HttpResponse:
    return _act(request, source, admission.accept, "The source {source} is accepted. {count} to be filed.")


@require_POST
@can(ADMIN_OF_ALL)
def discard(request: HttpRequest, source: str) -> HttpResponse:
    return _act(
        request,
        source,
        admission.discard,
        "{count} of {source} deleted. The next report of {source} adds it to the list again.",
    )


@require_POST
@can(ADMIN)
def file(request: HttpRequest, source: str) -> HttpResponse:
    return _act(request, source, admission.file_unsigned, "{count} of {source} to be filed.")


@require_POST
@can(ADMIN)
def discard_refused(request: HttpRequest, source: str) -> HttpResponse:
    return _act(request, source, admission.discard_refused, "{count} of {source} deleted.")


@require_POST
@can(ADMIN_OF_ALL)
def merge(request: HttpRequest, source: str) -> HttpResponse:
    if not request.viewer.may(VIEWER, source):
        raise Http404("Source not found, or not visible to you.")
    into = request.POST.get("into", "")
    try:
        merged = unconfigured_sources.merge(request.viewer, source, into)
    except Refused as refused:
        if refused.code == "forbidden":
            raise PermissionDenied(refused.message) from refused
        add_toast(request, str(refused), level="error")
    else:
        add_toast(request, merged.confirmation(source, into))
    return go(request, reverse("redrive:source-list"))


def _act(request: HttpRequest, source: str, act: Callable[[Viewer, str], int], done: str) -> HttpResponse:
    if not request.viewer.may(VIEWER, source):
        raise Http404("Source not found, or not visible to you.")
    try:
        count = act(request.viewer, source)
    except Refused as refused:
        if refused.code == "forbidden":
            raise PermissionDenied(refused.message) from refused
        add_toast(request, str(refused), level="error")
    else:
        add_toast(request, done.format(source=source, count=f"{count:,} report{'' if count == 1 else 's'}"))
    return go(request, reverse("redrive:source-list"))


# --- connect -------------------------------------------------------------------------------------------------------

CELERY, OTHER_CELERY = "celery", "celery-app"
_OF_FILE = {
    OTHER_CELERY: (
        "Another Celery app",
        'backend = "celery"\nurl = "redis://:password@10.0.0.7:6379/0"',
        "celery-redis",
    ),
    "bullmq": ("BullMQ", 'backend = "bullmq"\nurl = "redis://:password@10.0.0.7:6379/0"', "bullmq"),
    "bull": ("Bull", 'backend = "bull"\nurl = "redis://:password@10.0.0.7:6379/0"', "bull"),
    "rq": ("RQ", 'backend = "rq"\nurl = "redis://:password@10.0.0.7:6379/0"', "rq"),
    "dramatiq": ("Dramatiq", 'backend = "dramatiq"\nurl = "redis://:password@10.0.0.7:6379/0"', "dramatiq"),
    "dramatiq-rabbitmq": (
        "Dramatiq on RabbitMQ",
        'backend = "dramatiq"\nurl = "amqp://user:password@10.0.0.7/"\nqueues = ["default"]',
        "dramatiq-rabbitmq",
    ),
    "sidekiq": ("Sidekiq", 'backend = "sidekiq"\nurl = "redis://:password@10.0.0.7:6379/0"', "sidekiq"),
    "jobs-table": (
        "Jobs table",
        'backend = "jobs_table"\nurl = "postgresql://redrive:password@10.0.0.7/shop"\ntable = "jobs"',
        "jobs-tables",
    ),
    "django-tasks": (
        "Django Tasks",
        'backend = "django_tasks"\nurl = "postgresql://redrive:password@10.0.0.7/shop"',
        "django-tasks",
    ),
    "rabbitmq": ("RabbitMQ", 'backend = "rabbitmq"\nurl = "amqp://user:password@10.0.0.7/"', "rabbitmq"),
    "sqs": ("Amazon SQS", 'backend = "sqs"\nurl = "sqs://eu-west-1"\nqueues = ["orders"]', "sqs"),
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines to copy, with their purpose."""

    id: str
    title: str
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """Sign of life of a new source. `state`: reachable, unknown (awaited) or unreachable (wrong)."""

    state: str
    name: str
    text: str | SafeString
    url: str = ""


@require_safe
@can(VIEWER)
def connect(request: HttpRequest) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    has_own = any(not one.is_demo for one in config.sources().values())
    usual = CELERY if has_own or not config.sources() else OTHER_CELERY  # the demo's workers are connected already
    system = request.GET.get("system", CELERY if "source" in request.GET else usual)
    system = system if system in (CELERY, "guest", *_OF_FILE) else usual
    names = [name for name in unconfigured_sources.targets() if viewer.may(VIEWER, name)]
    wanted = request.GET.get("source", "")
    source = wanted if wanted in names else next(iter(names), "")
    address = f"{reverse('redrive:connect')}?system="
    labels = {CELERY: "Celery", OTHER_CELERY: "", "guest": "Celery, read-only"}
    labels |= {name: one[0] for name, one in _OF_FILE.items()}
    context = {
        "systems": [(label, f"{address}{name}", name == system) for name, label in labels.items()],
        "lines": _lines(viewer, system, source),
        "checks": _checks(viewer, source, now) if system == CELERY and source else [],
        "source": source if system == CELERY else "",
        "is_of_desk": system == CELERY,
        "others": [(name, f"{address}{CELERY}&source={name}") for name in names if name != source and system == CELERY],
        "self_url": request.get_full_path(),
    }
    return render_page(request, "redrive/sources/connect.html", context, part="checks")


def _lines(viewer: Viewer, system: str, source: str) -> list[Lines]:
    if system == "guest":
        note = "Nothing is written to the broker and nothing is installed. Failures seen this way cannot be replayed."
        return [
            Lines(
                "start",
                "Start a desk on your broker",
                f"{COMMAND} up --watch redis://:password@10.0.0.5:6379/0",
                f"Change the URL to your broker’s. {note}",
            )
        ]
    if system != CELERY:
        _, table, page = _OF_FILE[system]
        text = f"[sources.billing]\n{table}"
        names = ["billing", *(line.partition(" =")[0] for line in table.splitlines()[1:])]
        note = f"Change {', '.join(names[:-1])} and {names[-1]} to your values. List every source: the desk then ignores CELERY_BROKER_URL."
        set_it = f"export REDRIVE_SOURCES=/etc/redrive/sources.toml\n{COMMAND} up --no-demo"
        return [
            Lines("file", "Write the file of sources", text, f"{note} All options: docs/sources/{page}.md."),
            Lines("start", "Restart the desk with the file", set_it, "The source then appears on Queues."),
            *(_worker_lines(viewer, "billing") if system == OTHER_CELERY else ()),
        ]
    found = [] if source else [
        Lines("broker", "Restart the desk with your broker",
              f"export CELERY_BROKER_URL=redis://127.0.0.1:6379/0\n{COMMAND} up --no-demo")
    ]  # fmt: skip
    return [*found, *_worker_lines(viewer, source or CELERY)]


def _worker_lines(viewer: Viewer, name: str) -> list[Lines]:
    """Return the lines that set up the workers of a Celery app."""
    store, note = _store(viewer)
    return [
        Lines("package", "Install the guard in the workers",
              f"{COMMAND} worker-wheel dist\npip install dist/redrive_worker-{VERSION}-py3-none-any.whl",
              "Run the first line on the desk’s host and the second where the workers run."),
        Lines("code", "Call install() where the Celery app is created",
              f'from jobs_admin.worker.celery import install\n\ninstall(app, source="{name}")'),
        Lines("store", "Start the workers with this desk’s store", f"export REDRIVE_REDIS_URL='{store}'", note),
    ]  # fmt: skip


def _store(viewer: Viewer) -> tuple[str, str]:
    """Return the URL of the store as this viewer may read it, with notes."""
    url = config.setting("REDIS_URL")
    is_local = urlsplit(url).hostname in _LOOPBACK
    note = (
        "This address works on the desk’s machine only. For workers on other hosts, start the desk with REDRIVE_REDIS_URL "
        "of a Redis that these hosts can reach."
        if is_local
        else ""
    )
    if viewer.may(ADMIN, EVERY_SOURCE):
        return url, note
    return service_url.display_url(url), f"User and password are shown to admins of every source only. {note}".strip()


def _checks(viewer: Viewer, source: str, now: datetime) -> list[Check]:
    """Return what has arrived from a source, in order of arrival, and what is wrong."""
    row = overview.source(viewer, source, now)
    found = [_check_broker(row)]
    worker = Worker.objects.filter(source=source).order_by("-seen_at").first()
    if worker is None:
        found.append(Check("unknown", "Heartbeat", "no worker has reported yet"))
    else:
        is_alive = now - worker.seen_at <= timedelta(seconds=ALIVE_S)
        found.append(
            Check(
                "reachable" if is_alive else "unreachable",
                "Heartbeat",
                format_html("{}, {}", visible(worker.name), ago(worker.seen_at, now)),
            )
        )
    known = Source.objects.filter(name=source).first()
    is_reported = known is not None and (known.signed_since or known.unsigned_at)
    text = "the first report has arrived" if is_reported else "none yet: sent when a job fails"
    found.append(Check("reachable" if is_reported else "unknown", "First report", text))
    reported = Failure.objects.filter(source=source)
    if is_reported and (latest := reported.order_by("-pk").first()) is not None:
        text = format_html("{}, {}", visible(latest.error_type or latest.kind), ago(latest.failed_at, now))
        found.append(Check("reachable", "Failure", text, reverse("redrive:failure-detail", args=[latest.pk])))
    return [*found, *_find_faults(viewer, source, now)]


def _check_broker(row: overview.SourceRow | None) -> Check:
    if row is None or row.reachable is None:
        return Check("unknown", "Broker", "not checked yet")
    return (
        Check("reachable", "Broker", "reachable") if row.reachable else Check("unreachable", "Broker", visible(row.why))
    )


def _find_faults(viewer: Viewer, source: str, now: datetime) -> list[Check]:
    """Return likely reasons why reports do not arrive."""
    found = []
    if (stale := liveness.find_stale(now)) is not None:
        found.append(Check("unreachable", "Desk", with_code(in_zone(f"{stale.text} {stale.next}"))))
    if liveness.guard_switch() == "off":
        found.append(Check("unreachable", "Guard", with_code(f"The guard is off: run `{COMMAND} on`.")))
    url = reverse("redrive:source-list") if viewer.may_anywhere(ADMIN) else ""
    if refused := RefusedReports.objects.filter(source=source).order_by("-last_at").first():
        found.append(Check("unreachable", "Refused reports", visible(f"{refused.refused:,}: {refused.why}"), url))
    since = now - timedelta(seconds=ALIVE_S)
    others = Worker.objects.filter(seen_at__gte=since).exclude(source__in=config.sources())
    for name in others.order_by("source").values_list("source", flat=True).distinct()[:3]:
        if viewer.may(VIEWER, name):
            text = f"Workers report as {name}, which is not configured. {unconfigured_sources.fix(name)}"
            found.append(Check("unreachable", "Other name", with_code(text), links.failures_of(source=name)))
    return found
