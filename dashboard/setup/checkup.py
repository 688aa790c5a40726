"""Checks of `doctor`: each covers one part of the installation and returns findings with their fixes."""

from __future__ import annotations

import http.client
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlsplit

import redis
from celery import Celery
from django.conf import settings
from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import Error as DatabaseError
from kombu.exceptions import OperationalError as BrokerError

from dashboard.setup import connections, environment
from dashboard.setup.connections import about_database
from jobs_admin import config, trust
from jobs_admin.core import sentinel_url, untrusted, worker_acl
from jobs_admin.core.figures import dated
from jobs_admin.core.text import list_some, terminal_line
from jobs_admin.db import audit_anchor, audit_position
from jobs_admin.desk import key_rotation
from jobs_admin.fleet import heartbeats, uncaptured, worker_store
from jobs_admin.installation import COMMAND
from jobs_admin.models import Channel, Failure, RefusedReports, Source, Unfiled, Worker
from jobs_admin.models.access import ENGINE, EVERY_SOURCE
from jobs_admin.notices import heartbeat, slack
from jobs_admin.queues import liveness, refused_reports, sampling
from jobs_admin.rights import second_factor
from jobs_admin.sources import connect
from jobs_admin.sources.base import Finding, SourceError, SourceRefused
from jobs_admin.sources.base import Source as Adapter
from jobs_admin.trust import admission
from jobs_admin.worker.redis_clients import Sentinels
from jobs_admin.worker.versions import VERSION

HIGH, WARNING, INFO = "high", "warning", "info"

_BODY_WAIT_S = 2.0  # time within which a request without its body is answered if no proxy buffers it
HEARD_WITHIN = timedelta(seconds=30)
READ_WITHIN = timedelta(minutes=2)
PING_S = 1.5
FAILED_TRIES = 5  # consecutive failed deliveries from which a channel is reported


@dataclass(frozen=True, slots=True)
class Result:
    """Result for one part. `text` describes what was checked; without findings the part is healthy."""

    part: str
    text: str
    findings: list[Finding]
    is_usable: bool = True  # whether checks that read this part can run, independent of the severity of its findings

    @property
    def severity(self) -> str:
        found = {finding.severity for finding in self.findings}
        return next((severity for severity in (HIGH, WARNING, INFO) if severity in found), "ok")


def results(now: datetime | None = None) -> Iterator[Result]:
    """Run every check, in order. A check of an unusable part is skipped, and the part is reported once."""
    now = now or datetime.now(UTC)
    if unknown := connections.find_unknown_variables():
        yield Result("variables", "", unknown)
    database = check_database()
    yield database
    store = check_store()
    yield store
    if store.is_usable:
        yield _attempt("watch", lambda: check_watch(now))
        yield _attempt("shared keys", lambda: check_shared_keys(now))
    yield from check_sources(now, reads_database=database.is_usable)
    if database.is_usable:
        yield _attempt("reports", lambda: check_reports(is_store_known=store.is_usable))
        yield _attempt("payload keys", lambda: check_payload_keys(now))
        yield _attempt("signatures", lambda: check_signatures(now))
        yield _attempt("channels", check_channels)
        yield _attempt("logins", check_logins)
        yield _attempt("audit", check_audit)
    if config.signs_on():
        yield check_sign_on()


def _attempt(part: str, check: Callable[[], Result]) -> Result:
    """Return the check's result, or a severe finding if the database or the store failed during it."""
    try:
        return check()
    except (redis.RedisError, DatabaseError) as error:
        what = "The store" if isinstance(error, redis.RedisError) else "The database"
        why = _line(error) if isinstance(error, redis.RedisError) else about_database(error)
        text = f"Not checked: {what} failed during the check: {why}."
        return Result(part, "", [Finding("not-checked", HIGH, text, "Run `doctor` again.")])


def check_database() -> Result:
    found = []
    try:
        connection.ensure_connection()
        executor = MigrationExecutor(connection)
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            found.append(
                Finding(
                    "migrations",
                    HIGH,
                    "The database schema is older than the code.",
                    f"Run `{COMMAND} migrate`.",
                )
            )
    except DatabaseError as error:
        found.append(
            Finding(
                "database",
                HIGH,
                f"The database cannot be used: {about_database(error)}.",
                "Check DATABASE_URL, and that the database is running.",
            )
        )
    return Result("database", connection.vendor, found, is_usable=not found)


def check_store() -> Result:
    """Check Redrive's own Redis: it answers, and cannot lose any of its data."""
    try:
        client = config.store()
        client.ping()
        source = connect("store", "celery", config.setting("REDIS_URL"))
    except config.BadConfiguration as error:
        found = Finding("store", HIGH, str(error), "Without the store, no failures are recorded.")
        return Result("store", "", [found], is_usable=False)
    except (redis.RedisError, SourceError, OSError) as error:
        return _without_store(error)
    try:
        product, version = _version_of(client)
        seen, of_sentinels = check_sentinels(config.setting("REDIS_URL"))
        found = [*_about_the_guard(), *_about_the_store(source), *about_its_scripts(product, version), *of_sentinels]
        return Result("store", (f"{product} {version}" if version else "version unknown") + seen, found)
    except redis.RedisError as error:
        return _without_store(error)
    finally:
        source.close()


def check_sentinels(url: str) -> tuple[str, list[Finding]]:
    """Return what the Sentinels of a URL answer, as an addition to a line, and findings; for other URLs ""."""
    of_url = sentinel_url.parse(url)
    if of_url is None:
        return "", []
    views = Sentinels(of_url).views()
    good = [view for view in views if view.primary is not None]
    best = max(good, key=lambda view: view.config_epoch, default=None)
    found = []
    text = f", {len(good)} of {len(views)} Sentinels name a primary"
    if best is not None and best.primary is not None:
        replicas = f"{best.replicas} {'replica' if best.replicas == 1 else 'replicas'}"
        text += f" ({best.primary[0]}:{best.primary[1]}, {replicas}, quorum {best.quorum} of {best.sentinels})"
        if best.replicas == 0:
            why = f"The set {of_url.set_name} has no replica: nothing can take over."
            found.append(Finding("no-replica", WARNING, why, "Add a replica (REPLICAOF)."))
    for view in views:
        if view.why_not:
            why = f"The Sentinel {view.sentinel} {view.why_not}."
            found.append(Finding("sentinel", WARNING, why, "Check that it is running, and its address in the URL."))
        elif best is not None and view.primary != best.primary:
            why = f"The Sentinel {view.sentinel} names another primary than those with a later fail-over."
            found.append(Finding("sentinels-differ", WARNING, why, "Wait some seconds; then check its network."))
    return text, found


def _without_store(error: BaseException) -> Result:
    fix = "Check REDRIVE_REDIS_URL and that the store is running. Until then, workers keep their reports on disk."
    found = Finding("store", HIGH, f"The store does not answer: {_line(error)}.", fix)
    return Result("store", "", [found], is_usable=False)


def _version_of(client: redis.Redis) -> tuple[str, str]:
    """Return product and version; the version is "" if this user may not read it."""
    try:
        server = client.info("server")
    except redis.ResponseError:
        return connections.REDIS, ""
    if valkey := server.get("valkey_version"):
        return connections.VALKEY, str(valkey)
    return connections.REDIS, str(server.get("redis_version", ""))


def about_its_scripts(product: str, version: str) -> list[Finding]:
    """Return a warning if workers' scripts can take over a store of this product and version."""
    least = connections.least_fixed_version(product, version)
    if least is None:
        return []
    text = (
        f"{product} {version} has known vulnerabilities in Lua scripts (CVE-2025-49844 and others): a worker, which "
        "may run scripts, can take over the store."
    )
    fix = f"Upgrade to {product} {least} or later, unless your distribution has backported the fixes to {version}."
    return [Finding("store-version", WARNING, text, fix)]


def _about_the_store(source: Adapter) -> list[Finding]:
    """Return the adapter's findings, worded for a store, in which reports wait, not jobs."""
    try:
        findings = source.findings()
    except SourceError as error:
        config.store().ping()  # raises if it no longer answers
        text = f"The store answers, but its settings cannot be read: {_line(error)}."
        return [Finding("settings-unknown", WARNING, text, "Allow INFO and CONFIG GET to this user.")]
    return [sampling.store_finding(found) for found in findings]


def _about_the_guard() -> list[Finding]:
    switch = liveness.guard_switch()
    if switch == "off":
        return [Finding("guard-off", HIGH, "The guard is off: no failures are recorded.", f"Run `{COMMAND} on`.")]
    if switch == "drain":
        text = f"Workers only record (`{COMMAND} drain`): retry policies are not applied."
        return [Finding("guard-held", WARNING, text, f"Run `{COMMAND} on`, unless Redrive is being removed.")]
    return []


def check_watch(now: datetime) -> Result:
    found = []
    stale = liveness.find_stale(now)
    if stale is not None:
        found.append(Finding("watch", HIGH, stale.text, f"Start `{COMMAND} watch`, or check its log."))
    fix = f"Check the log of `watch`; run a second instance for ingest: `{COMMAND} watch --only ingest`."
    found += [Finding("ingest-lag", WARNING, text, fix) for text in liveness.late_sources(now).values()]
    for name, why in liveness.unjudged_rules().items():
        text = f"The rule “{name}” cannot be evaluated and fires no alerts: {why}"
        found.append(Finding("rule-unjudged", HIGH, text, "Change the rule, or check the log of `watch`."))
    return Result("watch", ", ".join(sorted(liveness.steps())), found)


def check_shared_keys(now: datetime) -> Result:
    """Check for workers that still write to the keys shared by all sources, as guards of the previous version do."""
    workers = heartbeats.workers_on_shared_keys(now)
    if not workers:
        return Result("shared keys", "not used by workers", [])
    text = f"Workers with an older guard write to keys that all sources share: {key_rotation.names(workers)}."
    fix = (
        "Upgrade the guard. These workers cannot sign: their reports are refused when the period for unsigned reports "
        "ends."
    )
    count = "used by 1 worker" if len(workers) == 1 else f"used by {len(workers):,} workers"
    return Result("shared keys", count, [Finding("keys-shared", INFO, text, fix)])


def check_sources(now: datetime, *, reads_database: bool = True) -> Iterator[Result]:
    try:
        sources = config.sources()
    except config.BadConfiguration as error:
        yield Result("sources", "", [Finding("sources", HIGH, str(error), "Correct the file in REDRIVE_SOURCES.")])
        return
    if not sources:
        fix = "Set CELERY_BROKER_URL, or REDRIVE_SOURCES to a file of sources; “Connect a source” in the desk shows its lines."
        yield Result("sources", "", [Finding("no-source", WARNING, "No source is configured.", fix)])
    for name, source in sources.items():
        check = partial(check_source, name, source, now, reads_database=reads_database)
        yield _attempt(f"source {name}", check)


def check_source(name: str, source: config.SourceConfig, now: datetime, *, reads_database: bool = True) -> Result:
    part = f"source {name}"
    try:
        adapter = config.adapter(name)
        queues = adapter.depths()
        found = adapter.findings()
    except SourceRefused as error:
        fix = f"Correct {_set_by(name, source, all_of_it=True)}."
        return Result(part, "", [Finding("refused", HIGH, str(error), fix)])
    except SourceError as error:
        fix = f"Check {_set_by(name, source)}, and that the source is running."
        return Result(part, "", [Finding("unreachable", HIGH, f"The source is unreachable: {_line(error)}.", fix)])
    seen, of_sentinels = check_sentinels(source.url)
    counted = f"{source.system.label}, {len(queues)} {'queue' if len(queues) == 1 else 'queues'}{seen}"
    found = [*found, *of_sentinels]
    # For systems that are followed, workers are not queried.
    if reads_database and (adapter.can.holds_dead or adapter.can.follows):
        read, about_reading = check_reading(name, now)
        counted, found = f"{counted}, {read}", found + about_reading
    elif reads_database and source.system.is_guarded:
        workers, about_workers = check_workers(name, source.url, now)
        counted, found = f"{counted}, {workers}", found + about_workers
    return Result(part, counted, found)


def _set_by(name: str, source: config.SourceConfig, *, all_of_it: bool = False) -> str:
    """Return the setting with the URL of the source; `all_of_it`: including its other options."""
    if source.is_demo:
        return "REDRIVE_DEMO_BROKER_URL, which `up` sets"
    if not config.setting("SOURCES"):
        return "CELERY_BROKER_URL"
    if config.setting("SOURCES") == str(environment.watch_file(environment.data_folder())):
        return "the URL of `up --watch`"
    it = f"[sources.{name}] in the file of REDRIVE_SOURCES"
    return f"what {it} says" if all_of_it else f"the url of {it}"


def check_reading(source: str, now: datetime) -> tuple[str, list[Finding]]:
    """Check that the dead jobs of a system that stores them are being read."""
    known = Source.objects.filter(name=source).first()
    stall = liveness.stalled_reader(known, now) if known is not None else None
    if stall is not None and known is not None and (known.pulled_at or known.why_not_pulled):
        text = f"Dead jobs have not been read since {dated(stall.since, now)} UTC: {stall.why.rstrip('.')}."
        fix = "New failures are missing. Fix the cause above, or check the log of `watch`."
        return "not read", [Finding("not-read", HIGH, text, fix)]
    if known is None or known.pulled_at is None:
        text = "Dead jobs have not been read completely yet."
        return "not read yet", [
            Finding("not-read-yet", WARNING, text, "Check that `watch` is running, then run `doctor` again.")
        ]
    age = now - known.pulled_at
    if age > READ_WITHIN:
        text = f"Dead jobs were last read at {dated(known.pulled_at, now)} UTC."
        return "read long ago", [Finding("read-late", WARNING, text, "Check that `watch` is running.")]
    return f"read {max(0, age.total_seconds()):.0f} s ago", []


def check_workers(source: str, url: str, now: datetime) -> tuple[str, list[Finding]]:
    """Compare reporting workers with those on the broker: any others are not guarded, or report elsewhere."""
    heard = list(Worker.objects.filter(source=source, seen_at__gte=now - HEARD_WITHIN))
    names = {worker.name for worker in heard}
    answering, found = _answering(url)
    silent = sorted(answering - names)
    if silent and liveness.find_stale(now) is not None:
        # Their reports since then are not in any table yet.
        found.append(
            Finding(
                "workers-unknown",
                WARNING,
                f"Unknown whether {len(silent)} of the workers report here: reports are not being filed.",
                f"Start `{COMMAND} watch`, then run `doctor` again.",
            )
        )
    elif silent:
        found += _about_the_silent(source, silent, now)
    elif liveness.find_stale(now) is None and not _has_reported(source):
        fix = (
            f"Add install(app, source={source!r}) where your Celery app is created, set REDRIVE_REDIS_URL of "
            "Redrive for its workers, and start them."
        )
        found.append(
            Finding(
                "workers-none", WARNING, "No worker has reported yet: no failures of this source are recorded.", fix
            )
        )
    for lost in uncaptured.recent_counts(ENGINE, now, source):
        text = (
            f"{lost.count} reports of host {lost.host} could not be captured since {dated(lost.since, now)} UTC: "
            "neither Redrive's store nor the spool on disk accepted them."
        )
        found.append(
            Finding(
                "uncaptured",
                HIGH,
                text,
                "Check that the store answers and watch is running, and enlarge the store or the spool. Reported "
                "for seven days after the first loss.",
            )
        )
    for worker in heard:
        if worker.spooled:
            text = f"{worker.name} has {worker.spooled} reports on its disk."
            found.append(
                Finding(
                    "spooled",
                    WARNING,
                    text,
                    "The worker could not reach Redrive's store; reports are sent when the store answers.",
                )
            )
    found += _about_signing(source, now)
    found += _about_copies(source, now) + _about_guards(source, now)
    if not config.sources()[source].is_demo:
        found += _about_store_users(source, now)
    return f"{len(heard)} guarded {'worker' if len(heard) == 1 else 'workers'}", found


def _has_reported(source: str) -> bool:
    return any(kind.objects.filter(source=source).exists() for kind in (Worker, Failure, RefusedReports))


def _about_the_silent(source: str, silent: list[str], now: datetime) -> list[Finding]:
    """Return findings about workers that answer on the broker without a heartbeat.

    They report as another source, or did so formerly, or never sent one.
    """
    elsewhere = _sources_of(silent, source, now)
    found = [_about_another_name(source, other, elsewhere[other]) for other in sorted(elsewhere)]
    left = sorted(set(silent) - {name for names in elsewhere.values() for name in names})
    heard = dict(Worker.objects.filter(source=source, name__in=left).values_list("name", "seen_at"))
    # Before the first guarded worker, as in a gradual rollout, this is no problem.
    was_guarded = Worker.objects.filter(source=source).exists()
    is_none_heard = not Worker.objects.filter(source=source, seen_at__gte=now - HEARD_WITHIN).exists()
    severity = HIGH if was_guarded and is_none_heard else WARNING
    fix = (
        "Check the start of their log (`-l INFO`) for the line “Redrive's guard …”: records (set the "
        "REDRIVE_REDIS_URL of this desk), is off (REDRIVE_MODE=off), or is not installed, with the reason. Without "
        f"such a line they are not guarded: add install(app, source={source!r}) where the app is created."
    )
    if quiet := [name for name in left if name in heard]:
        text = (
            f"{len(quiet)} of the workers answer on the broker, but their heartbeats have stopped: "
            f"{', '.join(quiet[:5])}. "
            f"The latest arrived at {dated(max(heard.values()), now)} UTC."
        )
        found.append(Finding("workers-quiet", severity, text, fix))
    if never := [name for name in left if name not in heard]:
        text = (
            f"{len(never)} of the workers answer on the broker, but this store has never had a heartbeat of them: "
            f"{', '.join(never[:5])}."
        )
        found.append(Finding("workers-silent", severity, text, fix))
    return found


def _sources_of(names: Collection[str], source: str, now: datetime) -> dict[str, list[str]]:
    """Return the other sources, known or not, under which workers with these names report, each with the names."""
    store, found = config.store(), defaultdict(set)
    for (other, name), text in worker_store.fields(
        store, "workers", worker_store.all_sources(store), all_shared=True
    ).items():
        at = untrusted.moment(untrusted.read_object(text).get("at"))
        if other != source and name in names and at is not None and now - at < HEARD_WITHIN:
            found[other].add(name)
    fresh = Worker.objects.filter(name__in=names, seen_at__gte=now - HEARD_WITHIN).exclude(source=source)
    for other, name in fresh.values_list("source", "name"):
        found[other].add(name)
    return {other: sorted(some) for other, some in found.items()}


def _about_another_name(source: str, other: str, names: list[str]) -> Finding:
    """Return a finding about workers that report under another source's name."""
    is_known = other in trust.current().sources
    text = (
        f"{len(names)} of the workers report as source {other}{'' if is_known else ', which is not accepted'}: "
        f"{', '.join(names[:5])}."
    )
    fix = f"Use source={source!r} in install(), or name the source {other} here."
    return Finding("workers-renamed", HIGH, text, fix)


def _about_signing(source: str, now: datetime) -> list[Finding]:
    """Return findings about workers that do not sign although they should, or sign with an invalid key."""
    known = trust.read()
    why = known.why_not_unsigned(source, now)
    has_key = any(known.keys[key_id].source == source for key_id in known.keys_in_force)
    try:
        reported = heartbeats.worker_reports(now, sources=[source])
    except redis.RedisError:
        return []
    found = []
    if (has_key or why) and (unsigned := sorted(one.name for one in reported if not one.key)):
        text = (
            f"{len(unsigned)} of the workers do not sign "
            f"reports{', although the source has a key' if has_key else ''}: "
            f"{', '.join(unsigned[:5])}."
        )
        fix = (
            "Set REDRIVE_SOURCE_KEY for them and restart them: unsigned reports are refused from a day after the "
            "first signed one."
        )
        if why:
            text += f" Reports of these workers are refused: {why}."
            fix = refused_reports.fix(source, known, now, needs_key=True)
            fix = f"{fix[0].upper()}{fix[1:]}. Workers take the key from REDRIVE_SOURCE_KEY when they start."
        found.append(Finding("workers-unsigned", HIGH if why else WARNING, text, fix))
    unreadable = known.unreadable_keys  # reported by the check of signatures
    if other := sorted(
        one.name for one in reported if one.key and one.key not in unreadable and not known.has_key(one.key, source)
    ):
        text = (
            f"{len(other)} of the workers sign with a key that is not active: {', '.join(other[:5])}. Their reports "
            "are "
            "refused."
        )
        fix = (
            f"Set an active key of {source} for them and restart them. `{COMMAND} source-key list` lists keys, "
            f"`{COMMAND} source-key create {source}` creates one."
        )
        found.append(Finding("workers-key", HIGH, text, fix))
    return found


def _about_copies(source: str, now: datetime) -> list[Finding]:
    """Return findings about reports of workers on replayed jobs whose messages may have been delivered twice."""
    try:
        reported = [one for one in heartbeats.worker_reports(now) if one.source == source]
    except redis.RedisError:
        return []  # an unreachable store is reported by another check
    dropped, unasked = sum(one.repeated for one in reported), sum(one.unasked for one in reported)
    found = []
    if dropped:
        text = f"The broker delivered second copies of replayed jobs ({dropped:,}); workers did not run them."
        found.append(Finding("copies-dropped", INFO, text, "No action needed: each of these jobs ran once."))
    if unasked:
        text = f"Replayed jobs ({unasked:,}) started while the store could not confirm whether a first copy had run."
        fix = "A job with two copies in the broker may have run twice. Check why the store did not answer."
        found.append(Finding("copies-unasked", WARNING, text, fix))
    return found


def _about_guards(source: str, now: datetime) -> list[Finding]:
    """Return findings about workers whose guard has another version than this desk: no fault, but worth attention."""
    try:
        reported = [one.guard for one in heartbeats.worker_reports(now) if one.source == source]
    except redis.RedisError:
        return []
    others = sorted({guard or "unknown" for guard in reported} - {VERSION})
    if not others:
        return []
    count = sum(guard != VERSION for guard in reported)
    return [
        Finding(
            "guard-version",
            INFO,
            f"{count} of the workers have a guard of another version ({', '.join(others[:5])}) than Redrive "
            f"({VERSION}).",
            f"The previous and the next version are compatible. `{COMMAND} worker-wheel` builds the version of this "
            "desk.",
        )
    ]


def _about_store_users(source: str, now: datetime) -> list[Finding]:
    """Return findings about workers whose Redis user may do more in the store than its source needs."""
    store = config.store()
    try:
        reported = [one.store_user for one in heartbeats.worker_reports(now) if one.source == source and one.store_user]
        wide = sorted(user for user in set(reported) if _may_do_more(store, user, source))
    except redis.RedisError:
        return []
    if not wide:
        return []
    count = sum(user in wide for user in reported)
    text = (
        f"{count} of the workers connect to the store as {', '.join(wide[:5])}, a user that may write for every source."
    )
    fix = f"Limit them to their source: `{COMMAND} worker-acl {source} --apply` creates a user for them."
    return [Finding("store-user", INFO, text, fix)]


def _may_do_more(store: redis.Redis, user: str, source: str) -> bool:
    """Return whether the store permits this user more than a worker of the source needs."""
    try:
        return any(
            store.execute_command("ACL DRYRUN", user, *command) == b"OK" for command in worker_acl.beyond(source)
        )
    except redis.ResponseError:  # Redis before 7, or no permission to ask
        return user == "default"


def _answering(url: str) -> tuple[set[str], list[Finding]]:
    """Return the workers that answer a ping on the broker, and a finding if the broker refuses to send one.

    None answers also if the broker has no such channel.
    """
    address, of_sentinels, tls = sentinel_url.for_kombu(url)
    app = Celery(broker=address, set_as_current=False)
    app.conf.update(broker_transport_options={"socket_timeout": 5, "socket_connect_timeout": 5, **of_sentinels})
    app.conf.update({} if tls is None else {"broker_use_ssl": tls})
    try:
        return {name for reply in app.control.ping(timeout=PING_S) for name in reply}, []
    except redis.RedisError:
        return set(), []
    except BrokerError as error:  # unreachable since the check began, or its disk is full
        text = f"The broker does not accept commands: {_line(error)}."
        return set(), [Finding("broker-refuses", HIGH, text, "Fix that first: until then no job can be sent.")]
    finally:
        app.close()


def check_reports(*, is_store_known: bool = True) -> Result:
    count = Unfiled.objects.filter(cause="").count()
    found = []
    if count:
        text = (
            f"{count} {'report' if count == 1 else 'reports'} could not be filed and "
            f"{'is' if count == 1 else 'are'} stored unchanged."
        )
        found.append(Finding("unfiled", WARNING, text, "View the reasons in the admin, under Unfiled."))
    reported = "all filed" if not count else f"{count} unfiled"
    return Result(
        "reports",
        reported if is_store_known else f"unknown: the store does not answer; of those received, {reported}",
        found,
    )


def check_payload_keys(now: datetime) -> Result:
    """Check the payload keys in use: none may be missing, and those after the first should be removed."""
    rotation = key_rotation.rotation(now)
    found = []
    for use in rotation.missing:
        if use.rows:
            key = "their key" if use.id == key_rotation.UNKNOWN else f"key {use.id}"
            text = f"{key_rotation.in_words(use.rows)} cannot be decrypted: {key} is not in REDRIVE_PAYLOAD_KEYS."
            fix = (
                f"Add that key again after the first, and restart watch and web. `{COMMAND} rotate-keys --status` "
                "lists keys by ID."
            )
            found.append(Finding("key-missing", HIGH, text, fix))
        if use.workers:
            which = "other keys" if use.id == key_rotation.UNKNOWN else f"key {use.id}"
            named = key_rotation.names(use.workers)
            text = f"Workers report that they encrypt for {which}, not in REDRIVE_PAYLOAD_KEYS: {named}. Heartbeats are not signed."
            fix = (
                f"Set the key printed by `{COMMAND} public_key` for them, or add that key again: their reports are "
                "stored raw until then."
            )
            found.append(Finding("key-missing-workers", WARNING, text, fix))
    for use in rotation.older:
        why, reported = rotation.must_stay(use), rotation.reported(use)
        if why:
            text = f"The old key {use.id} is still needed: {' '.join([*why, *reported])}"
            found.append(Finding("key-old", INFO, text, f"`watch` re-encrypts; `{COMMAND} rotate-keys` shows how far."))
        elif reported:
            text = f"Only workers need the old key {use.id}: {' '.join(reported)} {key_rotation.OVERRULE}"
            fix = (
                f"Set the key printed by `{COMMAND} public_key` (REDRIVE_PUBLIC_KEY) for workers that encrypt for "
                "the old one."
            )
            found.append(Finding("key-old-workers", INFO, text, fix))
        else:
            text = f"The old key {use.id} is no longer needed."
            fix = (
                "Remove the key from REDRIVE_PAYLOAD_KEYS, and keep a copy as long as backups from before the rotation."
            )
            found.append(Finding("key-unused", INFO, text, fix))
    count = len(rotation.older) + 1
    return Result("payload keys", f"{count} {'key' if count == 1 else 'keys'}, the first is {rotation.first.id}", found)


def check_signatures(now: datetime) -> Result:
    """Check the signing of reports, refused reports, and sources waiting to be accepted."""
    found = admission.findings(admission.state(ENGINE, now), now)
    known = trust.read()
    for key_id in known.unreadable_keys:
        text = (
            f"The key {key_id} cannot be decrypted: its payload key is not in REDRIVE_PAYLOAD_KEYS. Reports signed "
            "with the key are refused."
        )
        found.append(
            Finding("source-key", HIGH, text, "Add the payload key again, or create a new key of that source.")
        )
    count, until = len(known.keys_in_force), known.unsigned_until
    ends = f"until {dated(until, now)} UTC" if until and now < until else "no longer"
    return Result("signatures", f"{count} {'key' if count == 1 else 'keys'}, unsigned reports accepted {ends}", found)


def check_channels() -> Result:
    """Check that notifications can be sent and arrive. Resolves the host of the heartbeat."""
    found = []
    if why := heartbeat.why_refused():
        text = f"No heartbeat is sent (REDRIVE_HEARTBEAT_URL): {why}"
        found.append(Finding("heartbeat", WARNING, text, "Correct the URL, or add its host to REDRIVE_WEBHOOK_ALLOW."))
    channels = list(Channel.objects.order_by("name"))
    for one in channels:
        if one.disabled_at is not None:
            text = f"The channel {one.name} is disabled: {one.why_disabled}"
            found.append(
                Finding("channel-disabled", HIGH, text, "Fix the cause, send a test, then enable the channel.")
            )
        elif one.failures >= FAILED_TRIES:
            text = f"The last {one.failures} delivery attempts to the channel {one.name} failed."
            found.append(Finding("channel-failing", WARNING, text, "Check the deliveries, and send a test."))
    if config.slack_secret() and not any(slack.is_approval_channel(one) for one in channels):
        text = "Replays can be approved in no channel, although REDRIVE_SLACK_SIGNING_SECRET is set."
        fix = "Subscribe an incoming webhook of Slack (https://hooks.slack.com/services/…) to replay.awaiting_approval."
        found.append(Finding("slack-channel", WARNING, text, fix))
    if config.slack_secret() and not config.setting("URL").startswith("https://"):
        text = f"Slack sends presses only by https://, and REDRIVE_URL is {config.setting('URL')}."
        found.append(Finding("slack-address", WARNING, text, "Serve the desk over HTTPS, and set REDRIVE_URL."))
    return Result("channels", f"{len(channels)} {'channel' if len(channels) == 1 else 'channels'}", found)


def forwards_unread_bodies(url: str) -> bool:
    """Return whether the server at `url` forwards a request before its body; also False if nothing answers."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_BODY_WAIT_S)
    try:
        connection.putrequest("POST", f"{parts.path.rstrip('/')}{settings.FORCE_SCRIPT_NAME or ''}/healthz")
        connection.putheader("Content-Length", "10")
        connection.endheaders()
        return connection.getresponse().status == 405  # a buffering proxy waits for the ten bytes
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def check_logins() -> Result:
    """Check that wrong passwords are counted by client address, as far as settings and recent attempts show."""
    if not config.is_own_project():
        return Result("logins", "left to the project", [])
    from axes.models import AccessAttempt  # only in Redrive's own project

    from dashboard.web import addresses

    trusted = config.setting("TRUSTED_PROXIES")
    host = urlsplit(config.setting("URL")).hostname or ""
    address = addresses.parse_address(host)
    is_local = host == "localhost" or (address is not None and address.is_loopback)
    found = []
    if not trusted and not is_local:
        text = (
            f"No proxy is trusted, and REDRIVE_URL names {host}. Behind a proxy all clients share one address, so ten wrong "
            "passwords from anywhere lock an account for everyone."
        )
        fix = "Set REDRIVE_TRUSTED_PROXIES to the addresses of your proxy, such as 127.0.0.1."
        found.append(Finding("trusted-proxies", WARNING, text, fix))
    if not is_local and forwards_unread_bodies(config.setting("URL")):
        text = f"{host} forwards requests whose body has not arrived, so slow clients reach the desk."
        fix = "Use a buffering proxy in front (nginx: proxy_request_buffering on)."
        found.append(Finding("proxy-unbuffered", WARNING, text, fix))
    hidden = [at for at in AccessAttempt.objects.values_list("ip_address", flat=True)[:1000] if trusted and at]
    if count := sum(addresses.is_shared(at) for at in hidden):
        text = (
            f"{count} failed login{'' if count == 1 else 's'} counted for the address of a trusted proxy: "
            "the proxy does not send the client's address."
        )
        found.append(Finding("client-unknown", WARNING, text, "Configure the proxy to send X-Forwarded-For."))
    if config.takes_passwords():
        found += _find_missing_second_factors()
    count = len(trusted)
    return Result("logins", f"{count} trusted {'proxy' if count == 1 else 'proxies'}" if count else "no proxy", found)


def _find_missing_second_factors() -> list[Finding]:
    """Return the finding on accounts with a password that need a second factor and have none."""
    accounts = second_factor.find_required().filter(is_active=True, redrive_second_factor=None)
    accounts = accounts.exclude(password__startswith=UNUSABLE_PASSWORD_PREFIX)
    names = sorted(one.get_username() for one in accounts)
    if not names:
        return []
    text = (
        f"{len(names):,} {'account has' if len(names) == 1 else 'accounts have'} no second factor, which "
        f"REDRIVE_SECOND_FACTOR_FOR requires: {list_some([terminal_line(name, 60) for name in names], 5)}. "
        "Until they set it up, anyone with the password can."
    )
    return [Finding("second-factor", WARNING, text, "Ask them to log in now, or deactivate unused accounts.")]


def check_sign_on() -> Result:
    """Check that the OpenID provider answers, and that roles are granted on configured sources."""
    from dashboard.web import sign_on  # requires Django's accounts

    found = []
    try:
        sign_on.read_metadata()
    except sign_on.SignOnError as error:
        text = f"No one can sign in with {sign_on.provider_name()}: {error.detail}."
        found.append(
            Finding("sign-on", HIGH, text, "Check REDRIVE_OIDC_ISSUER, and that this machine reaches the provider.")
        )
    try:
        known = {*config.sources(), EVERY_SOURCE}
    except config.BadConfiguration:  # reported by the check of sources
        return Result("sign-on", sign_on.provider_name(), found)
    named = {source for _, source, _ in config.setting("OIDC_ROLES")}
    if unknown := sorted(named - known):
        text = f"REDRIVE_OIDC_ROLES gives roles on sources that are not configured: {', '.join(unknown)}."
        found.append(Finding("sign-on-source", WARNING, text, "Correct the names, or configure the sources."))
    return Result("sign-on", sign_on.provider_name(), found)


def check_audit() -> Result:
    """Check the audit's chain, its end against the anchor in the store, and its forwarding."""
    found = [Finding("audit", HIGH, one.text, one.fix) for one in audit_anchor.findings()]
    if late := audit_position.finding():
        found.append(Finding("audit-forward", WARNING, late.text, late.fix))
    return Result("audit", "chain intact" if not found else "", found)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
