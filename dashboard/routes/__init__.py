"""URLs of the desk, for `include("dashboard.routes")` in any project; names are in the namespace `redrive`."""

from __future__ import annotations

from django.urls import path, re_path, register_converter

from dashboard.account import login_views as second_step
from dashboard.account import views as account
from dashboard.alerts import runbook_views as runbooks
from dashboard.alerts import views as alerts
from dashboard.alerts.channels import views as channels
from dashboard.alerts.rules import views as rules
from dashboard.alerts.silences import views as silences
from dashboard.audit import views as audit
from dashboard.automations import views as automations
from dashboard.demo import views as demo
from dashboard.dependencies import views as dependencies
from dashboard.failures import act_views as failure_acts
from dashboard.failures import bulk_views as failure_bulk
from dashboard.failures import diff_views as failure_diff
from dashboard.failures import list_views as failure_list
from dashboard.failures import views as failures
from dashboard.groups import act_views as group_acts
from dashboard.groups import rule_views as group_rules
from dashboard.groups import views as groups
from dashboard.holds import views as holds
from dashboard.incidents import views as incidents
from dashboard.overview import palette_views as palette
from dashboard.overview import views as overview
from dashboard.policies import editor_views as policy_editor
from dashboard.policies import views as policies
from dashboard.policies.lint import views as policy_lint
from dashboard.quarantine import views as quarantine
from dashboard.queues import detail_views as queue
from dashboard.queues import views as queues
from dashboard.queues import worker_views as workers
from dashboard.queues.sources import views as sources
from dashboard.replays import slack_views as slack
from dashboard.replays import views as replays
from dashboard.retries import views as retries
from dashboard.saved_views import views as saved_views
from dashboard.web import views as web
from dashboard.web.api.errors import door
from dashboard.web.routing import NameConverter, chained, include_lazily

register_converter(NameConverter, "name")

app_name = "redrive"
_patterns = [
    path("", overview.index, name="overview"),
    path("activity/", overview.activity_page, name="activity"),
    path("groups/", groups.index, name="group-list"),
    path("groups/bulk/", group_acts.bulk, name="group-bulk"),
    path("groups/rules/", group_rules.index, name="group-rules"),
    path("groups/rules/preview/", group_rules.preview, name="group-rule-preview"),
    path("groups/rules/save/", group_rules.save, name="group-rule-save"),
    path("groups/rules/<int:pk>/withdraw/", group_rules.withdraw, name="group-rule-withdraw"),
    path("groups/<str:fingerprint>/", groups.detail, name="group-detail"),
    path("groups/<str:fingerprint>/story/", groups.story, name="group-story"),
    path("groups/<str:fingerprint>/why/", groups.why, name="group-why"),
    path("groups/<str:fingerprint>/change/", group_acts.change, name="group-change"),
    path("dependencies/", dependencies.index, name="dependency-list"),
    path("dependencies/<name:name>/", dependencies.detail, name="dependency-detail"),
    path("demo/", demo.index, name="demo"),
    path("demo/partner/", demo.partner, name="demo-partner"),
    path("demo/load/", demo.load, name="demo-load"),
    path("demo/incident/", demo.incident, name="demo-incident"),
    path("incidents/", incidents.index, name="incident"),
    re_path(r"^incidents/as/(?P<form>markdown|json)/$", incidents.as_text, name="incident-text"),
    path("queues/", queues.index, name="queue-list"),
    path("pauses/", holds.index, name="pause-list"),
    path("pauses/save/", holds.save, name="pause-save"),
    path("pauses/<int:pk>/resume/", holds.resume, name="pause-resume"),
    path("breakers/", holds.breaker_list, name="breaker-list"),
    path("breakers/<name:source>/<name:name>/", holds.breaker_detail, name="breaker-detail"),
    path("breakers/<name:source>/<name:name>/force/", holds.force, name="breaker-force"),
    path("automations/", automations.index, name="automation-list"),
    path("automations/new/", automations.new, name="automation-new"),
    path("automations/preview/", automations.preview, name="automation-preview"),
    path("automations/save/", automations.save, name="automation-save"),
    path("automations/stop-all/", automations.stop_all, name="automation-stop-all"),
    path("automations/<str:name>/", automations.detail, name="automation-detail"),
    path("automations/<str:name>/edit/", automations.edit, name="automation-edit"),
    path("automations/<str:name>/enable/", automations.enable, name="automation-enable"),
    path("automations/<str:name>/approve/", automations.approve, name="automation-approve"),
    path("automations/<str:name>/disable/", automations.disable, name="automation-disable"),
    path("automations/<str:name>/reset/", automations.reset, name="automation-reset"),
    path("automations/<str:name>/delete/", automations.delete, name="automation-delete"),
    path("workers/", workers.index, name="worker-list"),
    path("workers/<name:source>/<str:boot>/return/", queue.return_now, name="worker-return"),
    path("queues/<name:source>/<name:queue>/", queue.index, name="queue-detail"),
    path("quarantine/", quarantine.index, name="quarantine-list"),
    path("quarantine/<int:pk>/readmit/", quarantine.readmit, name="quarantine-readmit"),
    path("quarantine/<int:pk>/discard/", quarantine.discard, name="quarantine-discard"),
    path("palette/", palette.index, name="palette"),
    path("failures/", failure_list.index, name="failure-list"),
    path("failures/newer/", failure_list.newer, name="failure-newer"),
    path("failures/facets/", failure_list.facets, name="failure-facets"),
    path("failures/columns/", failure_list.choose_columns, name="failure-columns"),
    path("failures/columns/save/", failure_list.save_columns, name="failure-columns-save"),
    path("failures/complete/", failure_list.complete, name="failure-complete"),
    path("failures/help/", failure_list.help_page, name="search-help"),
    path("failures/bulk/", failure_bulk.bulk, name="failure-bulk"),
    path("failures/sweep/", failure_bulk.sweep, name="failure-sweep"),
    path("failures/undo/", failure_bulk.undo, name="failure-undo"),
    re_path(r"^failures/export/(?P<form>jsonl|csv)/$", failure_list.export, name="failure-export"),
    path("views/", saved_views.index, name="view-list"),
    path("views/tabs/", saved_views.tabs, name="view-tabs"),
    path("views/save/", saved_views.save, name="view-save"),
    path("views/<int:pk>/change/", saved_views.change, name="view-change"),
    path("views/<int:pk>/delete/", saved_views.delete, name="view-delete"),
    path("views/<int:pk>/count/", saved_views.count, name="view-count"),
    path("failures/<int:pk>/", failures.detail, name="failure-detail"),
    path("failures/<int:pk>/replay/", failure_acts.replay, name="failure-replay"),
    path("failures/<int:pk>/edit/", failure_acts.edit, name="failure-edit"),
    path("failures/<int:pk>/discard/", failure_acts.discard, name="failure-discard"),
    path("failures/<int:pk>/restore/", failure_acts.restore, name="failure-restore"),
    path("failures/<int:pk>/readmit/", failure_acts.readmit, name="failure-readmit"),
    path("failures/<int:pk>/opened/", failures.opened, name="failure-opened"),
    path("failures/<int:pk>/attempts/", failures.attempts, name="failure-attempts"),
    path("failures/<int:pk>/attempts/<int:attempt_pk>/", failures.attempt, name="failure-attempt"),
    path("failures/<int:pk>/related/", failures.related, name="failure-related"),
    path("failures/<int:pk>/diff/", failure_diff.index, name="failure-diff"),
    re_path(r"^failures/(?P<pk>\d{1,18})/as/(?P<form>python|json|traceback)/$", failures.as_text, name="failure-text"),
    path("replays/", replays.index, name="replay-list"),
    path("replays/new/", replays.new, name="replay-new"),
    path("replays/<int:pk>/", replays.detail, name="replay-detail"),
    path("replays/<int:pk>/pause/", replays.pause, name="replay-pause"),
    path("replays/<int:pk>/resume/", replays.resume, name="replay-resume"),
    path("replays/<int:pk>/bring-back/", replays.bring_back, name="replay-bring-back"),
    path("replays/<int:pk>/discard/", replays.discard, name="replay-discard"),
    path("replays/<int:pk>/approve/", replays.approve, name="replay-approve"),
    path("replays/<int:pk>/cancel/", replays.cancel, name="replay-cancel"),
    path("replays/<int:pk>/pace/", replays.pace, name="replay-pace"),
    path("replays/<int:pk>/resolve/", replays.resolve_all, name="replay-resolve-all"),
    path("replays/<int:pk>/items/<int:n>/resolve/", replays.resolve, name="replay-resolve"),
    path("retries/", retries.index, name="reschedule-list"),
    path("retries/reschedule/", retries.new, name="reschedule-new"),
    path("retries/<int:pk>/", retries.detail, name="reschedule-detail"),
    path("retries/<int:pk>/undo/", retries.undo, name="reschedule-undo"),
    path("policies/lint/", policy_lint.index, name="policy-lint"),
    path("policies/", policies.index, name="policy-list"),
    path("policies/new/", policy_editor.new, name="policy-new"),
    path("policies/new/of/", policy_editor.of_job, name="policy-of"),
    path("policies/<str:name>/", policy_editor.detail, name="policy-detail"),
    path("policies/<str:name>/preview/", policy_editor.preview, name="policy-preview"),
    path("policies/<str:name>/backtest/", policy_editor.backtest, name="policy-backtest"),
    path("policies/<str:name>/publish/", policy_editor.publish, name="policy-publish"),
    path("policies/<str:name>/withdraw/", policies.withdraw, name="policy-withdraw"),
    path("policies/<str:name>/versions/", policies.versions, name="policy-versions"),
    path("policies/<str:name>/versions/<int:version>/put-back/", policies.put_back, name="policy-put-back"),
    path("alerts/", alerts.index, name="alert-list"),
    path("alerts/<int:pk>/", alerts.detail, name="alert-detail"),
    path("alerts/<int:pk>/acknowledge/", alerts.acknowledge, name="alert-acknowledge"),
    path("alerts/<int:pk>/unacknowledge/", alerts.unacknowledge, name="alert-unacknowledge"),
    path("alerts/<int:pk>/silence/", alerts.silence, name="alert-silence"),
    path("alerts/silences/", silences.index, name="silence-list"),
    path("alerts/silences/fitting/", silences.fitting, name="silence-fitting"),
    path("alerts/silences/save/", silences.save, name="silence-save"),
    path("alerts/silences/<int:pk>/end/", silences.end, name="silence-end"),
    path("alerts/rules/", rules.index, name="alert-rules"),
    path("alerts/rules/new/", rules.new, name="alert-rule-new"),
    path("alerts/rules/preview/", rules.preview, name="alert-rule-preview"),
    path("alerts/rules/create/", rules.create, name="alert-rule-create"),
    path("alerts/rules/<int:pk>/", rules.detail, name="alert-rule-detail"),
    path("alerts/rules/<int:pk>/change/", rules.change, name="alert-rule-change"),
    path("alerts/rules/<int:pk>/switch/", rules.switch, name="alert-rule-switch"),
    path("alerts/rules/<int:pk>/delete/", rules.delete, name="alert-rule-delete"),
    path("alerts/runbooks/", runbooks.index, name="runbook-list"),
    path("alerts/runbooks/save/", runbooks.save, name="runbook-save"),
    path("alerts/runbooks/<int:pk>/delete/", runbooks.delete, name="runbook-delete"),
    path("alerts/channels/", channels.index, name="channel-list"),
    path("alerts/channels/new/", channels.new, name="channel-new"),
    path("alerts/channels/check/", channels.check, name="channel-check"),
    path("alerts/channels/create/", channels.create, name="channel-create"),
    path("alerts/channels/<int:pk>/", channels.detail, name="channel-detail"),
    path("alerts/channels/<int:pk>/change/", channels.change, name="channel-change"),
    path("alerts/channels/<int:pk>/rotate/", channels.rotate, name="channel-rotate"),
    path("alerts/channels/<int:pk>/end-rotation/", channels.end_rotation, name="channel-end-rotation"),
    path("alerts/channels/<int:pk>/enable/", channels.enable, name="channel-enable"),
    path("alerts/channels/<int:pk>/test/", channels.test, name="channel-test"),
    path("alerts/channels/<int:pk>/delete/", channels.delete, name="channel-delete"),
    path("alerts/deliveries/", channels.deliveries, name="delivery-list"),
    path("alerts/deliveries/<int:pk>/", channels.delivery, name="delivery-detail"),
    path("alerts/deliveries/<int:pk>/send-again/", channels.resend, name="delivery-resend"),
    path("undo/", audit.undo, name="undo"),
    path("audit/", audit.index, name="audit-list"),
    re_path(r"^audit/export/(?P<form>jsonl|csv)/$", audit.export, name="audit-export"),
    path("account/", account.index, name="account"),
    path("account/second-factor/", account.set_up, name="second-factor"),
    path("account/second-factor/start/", account.start, name="second-factor-start"),
    path("account/second-factor/remove/", account.remove, name="second-factor-remove"),
    path("account/recovery-codes/", account.renew_recovery_codes, name="recovery-codes"),
    path("account/password/", account.change_password, name="password-change"),
    path("account/sessions/end/", account.end_sessions, name="session-end"),
    path("account/slack/", account.slack, name="slack-link"),
    path("slack/", slack.receive, name="slack"),
    path("connect/", sources.connect, name="connect"),
    path("sources/", sources.index, name="source-list"),
    path("sources/<str:source>/accept/", sources.accept, name="source-accept"),
    path("sources/<str:source>/discard/", sources.discard, name="source-discard"),
    path("sources/<str:source>/merge/", sources.merge, name="source-merge"),
    path("sources/<str:source>/file/", sources.file, name="source-file"),
    path("sources/<str:source>/discard-refused/", sources.discard_refused, name="source-discard-refused"),
    path("login/", web.Login.as_view(), name="login"),
    path("login/code/", second_step.code, name="login-code"),
    path("login/set-up/", second_step.set_up, name="login-set-up"),
    path("login/sign-on/", web.start_sign_on, name="sign-on"),
    path("login/sign-on/callback/", web.finish_sign_on, name="sign-on-callback"),
    path("logout/", web.Logout.as_view(), name="logout"),
    path("healthz", web.healthz, name="healthz"),
    path("readyz", web.readyz, name="readyz"),
    path(".well-known/security.txt", web.security_txt, name="security-txt"),
    path("metrics", door(web.metrics_text, {"GET": web.metrics_text}), name="metrics"),
    include_lazily("api/", "dashboard.routes.api", "api"),
]

urlpatterns = chained(_patterns)
