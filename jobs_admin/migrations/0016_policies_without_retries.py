from django.db import migrations


class Migration(migrations.Migration):
    """A policy may leave retries to the task, and then has no backoff."""

    dependencies = [("jobs_admin", "0015_names")]

    operations = [migrations.RemoveConstraint(model_name="policyversion", name="policy_has_backoff_kind")]
