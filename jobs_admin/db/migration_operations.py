"""Migration operations in addition to Django's own."""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations import AddIndex, RemoveIndex


class AddIndexConcurrently(AddIndex):
    """Build an index while others write: CONCURRENTLY on PostgreSQL, as usual on SQLite. Needs `atomic = False`.

    An interrupted run leaves an invalid index on PostgreSQL, which `manage.py upgrade` drops before it builds it again.
    """

    atomic = False

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        on_postgresql = _on_postgresql(schema_editor, "AddIndexConcurrently", self.model_name, self.index)
        forwards = on_postgresql.database_forwards if on_postgresql else super().database_forwards
        forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        on_postgresql = _on_postgresql(schema_editor, "AddIndexConcurrently", self.model_name, self.index)
        backwards = on_postgresql.database_backwards if on_postgresql else super().database_backwards
        backwards(app_label, schema_editor, from_state, to_state)


class RemoveIndexConcurrently(RemoveIndex):
    """Drop an index while others write. Needs `atomic = False`."""

    atomic = False

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        on_postgresql = _on_postgresql(schema_editor, "RemoveIndexConcurrently", self.model_name, self.name)
        forwards = on_postgresql.database_forwards if on_postgresql else super().database_forwards
        forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        on_postgresql = _on_postgresql(schema_editor, "RemoveIndexConcurrently", self.model_name, self.name)
        backwards = on_postgresql.database_backwards if on_postgresql else super().database_backwards
        backwards(app_label, schema_editor, from_state, to_state)


def _on_postgresql(schema_editor: Any, name: str, *arguments: Any) -> Any:
    """Return Django's operation for PostgreSQL, or None on SQLite, where its driver may be missing."""
    if schema_editor.connection.vendor == "sqlite":
        return None
    from django.contrib.postgres import operations

    return getattr(operations, name)(*arguments)
