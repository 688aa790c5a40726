"""Operations of migrations beside Django's own."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres import operations
from django.db.migrations.operations import AddIndex, RemoveIndex


class AddIndexConcurrently(operations.AddIndexConcurrently):
    """Build an index while others write: CONCURRENTLY on PostgreSQL, as usual on SQLite. Needs `atomic = False`.

    An interrupted run leaves an invalid index on PostgreSQL, which `manage.py upgrade` drops before it builds it again.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        kind = AddIndex if schema_editor.connection.vendor == "sqlite" else operations.AddIndexConcurrently
        kind.database_forwards(self, app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        kind = AddIndex if schema_editor.connection.vendor == "sqlite" else operations.AddIndexConcurrently
        kind.database_backwards(self, app_label, schema_editor, from_state, to_state)


class RemoveIndexConcurrently(operations.RemoveIndexConcurrently):
    """Drop an index while others write. Needs `atomic = False`."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        kind = RemoveIndex if schema_editor.connection.vendor == "sqlite" else operations.RemoveIndexConcurrently
        kind.database_forwards(self, app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        kind = RemoveIndex if schema_editor.connection.vendor == "sqlite" else operations.RemoveIndexConcurrently
        kind.database_backwards(self, app_label, schema_editor, from_state, to_state)
