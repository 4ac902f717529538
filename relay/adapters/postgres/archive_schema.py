"""The table of archived batches as SQLAlchemy sees it; see `relay.adapters.postgres.schema`."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, MetaData, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import TIMESTAMP


def archive_table(metadata: MetaData) -> Table:
    """Make archive_batches in ``metadata``, and the indexes that find the rows to archive."""
    time = TIMESTAMP(timezone=True)
    table = Table(
        "archive_batches",
        metadata,
        Column("kind", Text, primary_key=True),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("rows", BigInteger, nullable=False),
        Column("size", BigInteger, nullable=False),
        Column("sha256", Text, nullable=False),
        Column("first_id", Uuid, nullable=False),
        Column("first_at", time, nullable=False),
        Column("last_id", Uuid, nullable=False),
        Column("last_at", time, nullable=False),
        Column("archived_at", time, nullable=False, server_default=text("now()")),
        Column("announced_at", time),
        CheckConstraint("kind IN ('outbox', 'inbox', 'tasks')", name="chk_archive_kind"),
    )
    Index("idx_archive_unannounced", table.c.archived_at, postgresql_where=table.c.announced_at.is_(None))
    for name, owner, ended in (
        ("idx_outbox_published", "outbox_events", "published_at"),
        ("idx_inbox_processed", "inbox_messages", "processed_at"),
        ("idx_task_finished", "task_outbox", "finished_at"),
    ):
        column = metadata.tables[owner].c[ended]
        Index(name, column, postgresql_where=column.is_not(None))
    return table
