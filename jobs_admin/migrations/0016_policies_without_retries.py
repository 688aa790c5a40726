from django.db import migrations

from jobs_admin.models.document_bounds import Bound, Holds


class Migration(migrations.Migration):
    """A policy that leaves retries to the task has no backoff."""

    dependencies = [("jobs_admin", "0015_names")]

    operations = [
        migrations.RemoveConstraint(model_name="policyversion", name="policy_has_backoff_kind"),
        migrations.AddConstraint(
            model_name="policyversion",
            constraint=Bound(
                condition=Holds(
                    "COALESCE(jsonb_path_match(document, 'strict $.retries == false', '{}', true), false) OR COALESCE(jsonb_path_match(document, 'strict $.backoff.kind.type() == \"string\" && $.backoff.kind != \"\"', '{}', true), false)",
                    "COALESCE(json_type(document, '$.retries') = 'false',0) OR COALESCE(json_type(document, '$.backoff.kind') = 'text' AND json_extract(document, '$.backoff.kind') > '',0)",
                ),
                name="policy_has_backoff_kind",
            ),
        ),
    ]
