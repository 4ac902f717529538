"""What a migrated database must hold, written by hand from SDS-047 §9 and DESIGN §4, and how to read what it does.

Columns as (type, nullable, default); constraints and indexes as PostgreSQL prints them.
"""

from __future__ import annotations

from typing import Any

import psycopg

from tests import oldest

Column = tuple[str, bool, str | None]

UUID, TEXT, INT, BIGINT, JSONB, BYTEA, BOOLEAN = "uuid", "text", "integer", "bigint", "jsonb", "bytea", "boolean"
TIME = "timestamp with time zone"
NULL, NOT_NULL = True, False

# --- SDS-047 §9, verbatim ---

SDS_OUTBOX: dict[str, Column] = {
    "id": (UUID, NOT_NULL, "gen_random_uuid()" if oldest.WANTED else "uuidv7()"),
    "aggregate_type": (TEXT, NOT_NULL, None),
    "aggregate_id": (TEXT, NOT_NULL, None),
    "event_type": (TEXT, NOT_NULL, None),
    "event_version": (INT, NOT_NULL, "1"),
    "payload": (JSONB, NOT_NULL, None),
    "occurred_at": (TIME, NOT_NULL, "now()"),
    "correlation_id": (UUID, NULL, None),
    "causation_id": (UUID, NULL, None),
    "published_at": (TIME, NULL, None),
    "publish_attempts": (INT, NOT_NULL, "0"),
    "publish_error": (TEXT, NULL, None),
}
SDS_OUTBOX_CONSTRAINTS = {
    "outbox_events_pkey": "PRIMARY KEY (id)",
}
SDS_OUTBOX_INDEXES = {
    "idx_outbox_unpublished": "(occurred_at) WHERE (published_at IS NULL)",
    "idx_outbox_correlation": "(correlation_id)",
}
SDS_INBOX: dict[str, Column] = {
    "message_id": (UUID, NOT_NULL, None),
    "subject": (TEXT, NOT_NULL, None),
    "received_at": (TIME, NOT_NULL, "now()"),
    "processed_at": (TIME, NULL, None),
    "attempts": (INT, NOT_NULL, "0"),
    "last_error": (TEXT, NULL, None),
}
SDS_INBOX_CONSTRAINTS = {"inbox_messages_pkey": "PRIMARY KEY (message_id)"}
SDS_INBOX_INDEXES = {"idx_inbox_unprocessed": "(received_at) WHERE (processed_at IS NULL)"}

# --- DESIGN §4 ---

OUR_OUTBOX: dict[str, Column] = {
    "seq": (BIGINT, NOT_NULL, "by default as identity"),
    "partition_key": (TEXT, NOT_NULL, None),
    "topic": (TEXT, NULL, None),
    "headers": (JSONB, NOT_NULL, "'{}'::jsonb"),
    "available_at": (TIME, NULL, None),
    "dead_at": (TIME, NULL, None),
    "published_stream": (TEXT, NULL, None),
    "published_seq": (BIGINT, NULL, None),
    "published_duplicate": (BOOLEAN, NULL, None),
    "generation": (INT, NOT_NULL, "0"),
    "originals": (JSONB, NULL, None),
    "stream": (TEXT, NULL, None),
    "attempt_log": (JSONB, NULL, None),
    "expires_at": (TIME, NULL, None),
}
_READY = "((published_at IS NULL) AND (dead_at IS NULL) AND (available_at IS NULL))"
_LANE = (
    "(\nCASE\n    WHEN (partition_key = ''::text) THEN '-1'::integer"
    "\n    ELSE (hashtext(partition_key) & 63)\nEND)"
)
_DEAD = "(\nCASE\n    WHEN (dead_at IS NULL) THEN 0\n    ELSE 1\nEND)"
_FAILED = "((published_at IS NULL) AND (publish_attempts > 0))"
_DUE = "((published_at IS NULL) AND (dead_at IS NULL) AND (available_at IS NOT NULL))"
OUR_OUTBOX_INDEXES = {
    "idx_outbox_causation": "(causation_id) WHERE (causation_id IS NOT NULL)",
    "idx_outbox_ready": f"({_LANE}, seq, hashtextextended(partition_key, (0)::bigint)) WHERE {_READY}",
    "idx_outbox_due": f"(available_at) WHERE {_DUE}",
    "idx_outbox_failed": f"(hashtext(partition_key), seq) WHERE {_FAILED}",
    "idx_outbox_heads": f"({_DEAD}, {_LANE}, seq) WHERE {_FAILED}",
    "idx_outbox_ledger": "(published_stream, published_seq) WHERE (published_seq IS NOT NULL)",
    "idx_outbox_published": "(published_at) WHERE (published_at IS NOT NULL)",
    "idx_outbox_dead": "(dead_at) WHERE ((dead_at IS NOT NULL) AND (published_at IS NULL))",
    "idx_outbox_discarded": (
        "(dead_at) WHERE ((published_at IS NOT NULL) AND (dead_at IS NOT NULL)"
        " AND COALESCE((expires_at > dead_at), true))"
    ),
    "idx_outbox_delayed": "(hashtext(partition_key)) WHERE ((published_at IS NULL) AND (dead_at IS NULL) "
    "AND (available_at IS NOT NULL))",
    "idx_outbox_expired": "(dead_at) WHERE ((published_at IS NOT NULL) AND (expires_at <= dead_at))",
    "uq_outbox_original": "(((originals ->> 'id'::text))) WHERE ((originals ->> 'id'::text) IS NOT NULL)",
}
OUR_INBOX: dict[str, Column] = {
    "subscription": (TEXT, NULL, None),
    "stream": (TEXT, NULL, None),
    "stream_seq": (BIGINT, NULL, None),
    "ack_subject": (TEXT, NULL, None),
    "body": (BYTEA, NULL, None),
    "headers": (JSONB, NOT_NULL, "'{}'::jsonb"),
    "event_type": (TEXT, NULL, None),
    "event_version": (INT, NULL, None),
    "occurred_at": (TIME, NULL, None),
    "partition_key": (TEXT, NULL, None),
    "correlation_id": (UUID, NULL, None),
    "causation_id": (UUID, NULL, None),
    "next_attempt_at": (TIME, NULL, None),
    "enqueued_at": (TIME, NULL, None),
    "claim_token": (UUID, NULL, None),
    "claimed_until": (TIME, NULL, None),
    "dead_letter_reason": (TEXT, NULL, None),
    "dead_letter_class": (TEXT, NULL, None),
    "dead_lettered_at": (TIME, NULL, None),
    "requeues": (INT, NOT_NULL, "0"),
    "order_key": (TEXT, NULL, None),
    "order_seq": (BIGINT, NULL, None),
    "stepped_over": (BOOLEAN, NOT_NULL, "false"),
    "originals": (JSONB, NULL, None),
    "source_id": (UUID, NULL, None),
    "let_go_at": (TIME, NULL, None),
    "attempt_log": (JSONB, NULL, None),
    "expires_at": (TIME, NULL, None),
}
OUR_INBOX_CONSTRAINTS = {
    "chk_inbox_processed_after_received": "CHECK (((processed_at IS NULL) OR (processed_at >= received_at)))",
}
_HOLDS = "((order_key IS NOT NULL) AND (processed_at IS NULL) AND (NOT stepped_over))"
OUR_INBOX_INDEXES = {
    "idx_inbox_sweep": "(subscription, enqueued_at) WHERE ((processed_at IS NULL) AND (dead_lettered_at IS NULL))",
    "idx_inbox_correlated": "(correlation_id) WHERE (correlation_id IS NOT NULL)",
    "idx_inbox_failing": "(received_at) WHERE ((num_nonnulls(last_error, dead_letter_reason) > 0)"
    " AND (processed_at IS NULL) AND (dead_lettered_at IS NULL))",
    "idx_inbox_stream": "(stream, stream_seq)",
    "idx_inbox_dead_lettered": "(dead_lettered_at) WHERE (dead_lettered_at IS NOT NULL)",
    "idx_inbox_processed": "(processed_at) WHERE (processed_at IS NOT NULL)",
    "idx_inbox_source": "(source_id, subscription) WHERE (source_id IS NOT NULL)",
    "idx_inbox_order": f"(subscription, order_key, order_seq, message_id) WHERE {_HOLDS}",
    "idx_inbox_holding": "(subscription, received_at) WHERE ((processed_at IS NULL) AND (dead_lettered_at IS NULL)"
    " AND (let_go_at IS NULL) AND ((enqueued_at IS NULL) OR (next_attempt_at IS NOT NULL)))",
    "idx_inbox_held": "(subscription, received_at) WHERE ((next_attempt_at ="
    " 'infinity'::timestamp with time zone) AND (processed_at IS NULL))",
    "idx_inbox_expired": "(processed_at) WHERE ((processed_at IS NOT NULL)"
    " AND (dead_letter_class = 'expired'::text))",
    "idx_inbox_discarded": "(processed_at) WHERE ((processed_at IS NOT NULL)"
    " AND (dead_letter_class = 'discarded'::text))",
}
DEAD_LETTERS: dict[str, Column] = {
    "id": (BIGINT, NOT_NULL, "by default as identity"),
    "message_id": (UUID, NOT_NULL, None),
    "occurrence": (INT, NOT_NULL, "1"),
    "recorded_at": (TIME, NOT_NULL, "now()"),
    "subscription": (TEXT, NULL, None),
    "subject": (TEXT, NOT_NULL, None),
    "stream": (TEXT, NULL, None),
    "stream_seq": (BIGINT, NULL, None),
    "event_type": (TEXT, NULL, None),
    "correlation_id": (UUID, NULL, None),
    "causation_id": (UUID, NULL, None),
    "class": (TEXT, NOT_NULL, None),
    "reason": (TEXT, NOT_NULL, None),
    "attempts": (INT, NOT_NULL, "0"),
    "headers": (JSONB, NOT_NULL, "'{}'::jsonb"),
    "original": (BYTEA, NULL, None),
    "letter_stream": (TEXT, NULL, None),
    "letter_seq": (BIGINT, NULL, None),
    "alerted_at": (TIME, NULL, None),
    "status": (TEXT, NOT_NULL, "'open'::text"),
    "closed_at": (TIME, NULL, None),
    "closed_by": (TEXT, NULL, None),
    "note": (TEXT, NULL, None),
    "originals": (JSONB, NULL, None),
    "snoozed_until": (TIME, NULL, None),
    "corrected_at": (TIME, NULL, None),
    "correction": (TEXT, NULL, None),
}
_STATES = "ARRAY['open'::text, 'requeued'::text, 'discarded'::text, 'resolved'::text]"
_CLASSES = "ARRAY['poison'::text, 'deterministic'::text, 'exhausted'::text, 'unconfirmed'::text]"
DEAD_LETTERS_CONSTRAINTS = {
    "dead_letters_pkey": "PRIMARY KEY (id)",
    "uq_dead_letters_message": "UNIQUE (message_id, occurrence)",
    "chk_dead_letters_class": f"CHECK ((class = ANY ({_CLASSES}))) NOT VALID",
    "chk_dead_letters_status": f"CHECK ((status = ANY ({_STATES})))",
}
DEAD_LETTERS_INDEXES = {
    "idx_dead_letters_open": "(recorded_at) WHERE (status = 'open'::text)",
    "idx_dead_letters_unalerted": "(id) WHERE ((alerted_at IS NULL) AND (status = 'open'::text))",
    "idx_dead_letters_alerted": "(alerted_at) WHERE (alerted_at IS NOT NULL)",
    "idx_dead_letters_correlation": "(correlation_id)",
    "uq_dead_letters_message": "(message_id, occurrence)",
}
AUDIT_LOG: dict[str, Column] = {
    "id": (BIGINT, NOT_NULL, "by default as identity"),
    "at": (TIME, NOT_NULL, "now()"),
    "actor": (TEXT, NOT_NULL, None),
    "action": (TEXT, NOT_NULL, None),
    "ids": ("text[]", NOT_NULL, None),
    "note": (TEXT, NULL, None),
    "selection": (UUID, NULL, None),
    "undoes": (BIGINT, NULL, None),
    "about": (JSONB, NULL, None),
}
AUDIT_LOG_INDEXES: dict[str, str] = {
    "idx_audit_log_at": "(at)",
    "uq_audit_log_selection": "(selection) WHERE (selection IS NOT NULL)",
    "uq_audit_log_undoes": "(undoes) WHERE (undoes IS NOT NULL)",
}
SELECTIONS: dict[str, Column] = {
    "id": (UUID, NOT_NULL, None),
    "made_at": (TIME, NOT_NULL, "now()"),
    "kind": (TEXT, NOT_NULL, None),
    "action": (TEXT, NOT_NULL, None),
    "ids": ("text[]", NULL, None),
    "wanted": (JSONB, NULL, None),
}
ARCHIVE_BATCHES: dict[str, Column] = {
    "kind": (TEXT, NOT_NULL, None),
    "number": (BIGINT, NOT_NULL, None),
    "rows": (BIGINT, NOT_NULL, None),
    "size": (BIGINT, NOT_NULL, None),
    "sha256": (TEXT, NOT_NULL, None),
    "first_id": (UUID, NOT_NULL, None),
    "first_at": (TIME, NOT_NULL, None),
    "last_id": (UUID, NOT_NULL, None),
    "last_at": (TIME, NOT_NULL, None),
    "archived_at": (TIME, NOT_NULL, "now()"),
    "announced_at": (TIME, NULL, None),
    "deleted_at": (TIME, NULL, None),
    "gone_at": (TIME, NULL, None),
}
ARCHIVED_MESSAGES: dict[str, Column] = {
    "message_id": (UUID, NOT_NULL, None),
    "batch": (BIGINT, NOT_NULL, None),
    "subscription": (TEXT, NULL, None),
    "source_id": (UUID, NULL, None),
}
ARCHIVE_BATCHES_CONSTRAINTS = {
    "archive_batches_pkey": "PRIMARY KEY (kind, number)",
    "chk_archive_kind": "CHECK ((kind = ANY (ARRAY['outbox'::text, 'inbox'::text, 'tasks'::text])))",
}
INBOX_WATERMARKS: dict[str, Column] = {
    "subscription": (TEXT, NOT_NULL, None),
    "stream": (TEXT, NOT_NULL, None),
    "consumer_seq": (BIGINT, NULL, None),
    "stream_seq": (BIGINT, NOT_NULL, "0"),
    "ahead": (JSONB, NOT_NULL, "'[]'::jsonb"),
}
PARKED_KEYS: dict[str, Column] = {
    "subscription": (TEXT, NOT_NULL, None),
    "order_key": (TEXT, NOT_NULL, None),
    "parked_at": (TIME, NOT_NULL, "now()"),
    "message_id": (UUID, NOT_NULL, None),
    "reason": (TEXT, NOT_NULL, None),
}
PROCESSED_EVENTS: dict[str, Column] = {
    "handler": (TEXT, NOT_NULL, None),
    "message_id": (UUID, NOT_NULL, None),
    "processed_at": (TIME, NOT_NULL, "now()"),
}
PROCESSED_EVENTS_CONSTRAINTS = {"processed_events_pkey": "PRIMARY KEY (handler, message_id)"}
PROCESSED_EVENTS_INDEXES = {"idx_processed_events_age": "(processed_at)"}
SCHEDULER_LEASE: dict[str, Column] = {
    "id": (BOOLEAN, NOT_NULL, "true"),
    "holder": (UUID, NULL, None),
    "who": (TEXT, NULL, None),
    "term": (BIGINT, NOT_NULL, "0"),
    "acquired_at": (TIME, NULL, None),
    "expires_at": (TIME, NULL, None),
}
SCHEDULED_JOBS: dict[str, Column] = {
    "name": (TEXT, NOT_NULL, None),
    "schedule": (TEXT, NOT_NULL, None),
    "registered_at": (TIME, NOT_NULL, "now()"),
    "last_run_at": (TIME, NULL, None),
    "next_run_at": (TIME, NULL, None),
    "error": (TEXT, NULL, None),
    "requested_at": (TIME, NULL, None),
    "removed_at": (TIME, NULL, None),
    "paused_at": (TIME, NULL, None),
}
SCHEDULED_RUNS: dict[str, Column] = {
    "id": (BIGINT, NOT_NULL, "by default as identity"),
    "job": (TEXT, NOT_NULL, None),
    "scheduled_for": (TIME, NOT_NULL, None),
    "state": (TEXT, NOT_NULL, "'waiting'::text"),
    "correlation_id": (UUID, NOT_NULL, None),
    "opened_at": (TIME, NOT_NULL, "now()"),
    "enqueued_at": (TIME, NULL, None),
    "available_at": (TIME, NULL, None),
    "attempts": (INT, NOT_NULL, "0"),
    "who": (TEXT, NULL, None),
    "started_at": (TIME, NULL, None),
    "finished_at": (TIME, NULL, None),
    "error": (TEXT, NULL, None),
    "claim_token": (UUID, NULL, None),
    "claimed_until": (TIME, NULL, None),
}
_RUN_STATES = ", ".join(
    f"'{state}'::text" for state in ("waiting", "started", "finished", "failed", "skipped", "missed")
)
SCHEDULED_RUNS_CONSTRAINTS = {
    "scheduled_runs_pkey": "PRIMARY KEY (id)",
    "uq_scheduled_runs": "UNIQUE (job, scheduled_for)",
    "chk_scheduled_runs_state": f"CHECK ((state = ANY (ARRAY[{_RUN_STATES}])))",
}
SCHEDULED_RUNS_INDEXES = {
    "uq_scheduled_runs": "(job, scheduled_for)",
    "uq_scheduled_runs_started": "(job) WHERE (state = 'started'::text)",
    "idx_scheduled_runs_open": "(opened_at) WHERE (state = ANY (ARRAY['waiting'::text, 'started'::text]))",
    "idx_scheduled_runs_age": "(opened_at)",
    "idx_scheduled_runs_correlation": "(correlation_id)",
}
STORAGE = {
    "fillfactor": "80",
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_cost_delay": "0",
    "autovacuum_vacuum_insert_scale_factor": "0.1",
}

TRIGGERS = {
    # SDS-047 §9, for new rows only: a CHECK is looked at again whenever a row changes.
    "chk_occurred_not_future": "CREATE CONSTRAINT TRIGGER chk_occurred_not_future AFTER INSERT"
    " ON public.outbox_events NOT DEFERRABLE INITIALLY IMMEDIATE FOR EACH ROW"
    " WHEN ((new.occurred_at > (clock_timestamp() + '00:01:00'::interval)))"
    " EXECUTE FUNCTION relay_refuse_future_event()",
    "chk_outbox_producer": "BEFORE INSERT ON public.outbox_events FOR EACH ROW"
    " WHEN (((new.publish_attempts <> 0) OR (new.generation <> 0)"
    " OR (num_nonnulls(new.published_at, new.publish_error, new.dead_at, new.published_stream,"
    " new.published_seq, new.published_duplicate) > 0)"
    " OR (new.available_at < '0001-01-02 00:00:00+00'::timestamp with time zone)"
    " OR (new.available_at >= '9999-12-31 00:00:00+00'::timestamp with time zone)"
    " OR (new.expires_at < '0001-01-02 00:00:00+00'::timestamp with time zone)"
    " OR ((new.expires_at >= '9999-12-31 00:00:00+00'::timestamp with time zone)"
    " AND (new.expires_at < 'infinity'::timestamp with time zone))"
    " OR (new.occurred_at < '0001-01-02 00:00:00+00'::timestamp with time zone)"
    " OR (jsonb_typeof(new.headers) <> 'object'::text) OR (jsonb_typeof(new.originals) <> 'object'::text)))"
    " EXECUTE FUNCTION relay_refuse_engine_columns()",
    "relay_count_reopened": "AFTER UPDATE ON public.outbox_events FOR EACH ROW"
    " WHEN (((new.published_at IS NULL) AND (new.dead_at IS NULL) AND (new.available_at IS NULL)"
    " AND ((num_nonnulls(old.published_at, old.dead_at, old.available_at) > 0)"
    " OR (new.partition_key <> old.partition_key) OR (new.seq < old.seq))))"
    " EXECUTE FUNCTION relay_count_reopened()",
    "relay_count_truncated": "AFTER TRUNCATE ON public.outbox_events FOR EACH STATEMENT"
    " EXECUTE FUNCTION relay_count_reopened()",
    "relay_number_outbox_events": "AFTER INSERT ON public.outbox_events REFERENCING NEW TABLE AS added"
    " FOR EACH STATEMENT WHEN ((current_setting('relay.outbox_raw'::text, true) = 'on'::text))"
    " EXECUTE FUNCTION relay_number_outbox_events()",
    "relay_order_outbox_event": "BEFORE INSERT ON public.outbox_events FOR EACH ROW"
    " WHEN ((new.partition_key IS NULL)) EXECUTE FUNCTION relay_order_outbox_event()",
    "relay_raise_alert": "AFTER UPDATE OF dead_at ON public.outbox_events FOR EACH ROW"
    " WHEN (((new.dead_at IS NOT NULL) AND (old.dead_at IS NULL) AND (new.published_at IS NULL)))"
    " EXECUTE FUNCTION relay_raise_alert()",
    "relay_wake_publisher": "BEFORE INSERT ON public.outbox_events FOR EACH STATEMENT"
    " EXECUTE FUNCTION relay_wake_publisher()",
}

#: The smallest number of more than 400 digits, and that of as many behind the point, as PostgreSQL prints them.
_LONG, _SHORT = "1" + "0" * 400, "0." + "0" * 399 + "1"
RULES = {
    "relay_lane_of_hash": "(hash & 63)",
    "relay_lane": "CASE WHEN (partition_key = ''::text) THEN '-1'::integer"
    " ELSE relay_lane_of_hash(hashtext(partition_key)) END",
    "relay_publisher_locks": "1785882987",
    "relay_key_locks": "1785882988",
    "relay_lane_locks": "1785882989",
    "relay_concurrency_locks": "1785882990",
    "relay_archive_locks": "1785882991",
    "relay_alert_locks": "1785882992",
    "relay_holds_back": "(((generation = 0) OR (later_generation > 0))"
    " AND ((dead_at IS NULL) OR dead_head_blocks))",
    "relay_incident_state": "CASE WHEN (((incident).status = 'open'::text) AND ((incident).snoozed_until > now()))"
    " THEN 'snoozed'::text ELSE (incident).status END",
    "relay_is_free": "(((claimed_until IS NULL) OR (claimed_until < now()))"
    " AND ((next_attempt_at IS NULL) OR (next_attempt_at <= (now() + early))))",
    "relay_is_held_up": "((num_nonnulls(dead_lettered_at, next_attempt_at) > 0)"
    " OR ((claimed_until > now()) AND (enqueued_at < (now() - hangs))))",
    "relay_holds_key": "((order_key IS NOT NULL) AND (processed_at IS NULL) AND (NOT stepped_over))",
    "relay_unpacks": '(NOT jsonb_path_exists(of_row, \'$.**?(@.type() == "number" && ('
    f"(@ >= {_LONG} || @ <= -{_LONG}) || (@ > -{_SHORT} && @ < {_SHORT}) && @ != 0))'::jsonpath))",
    "relay_exhausted": "((dead_letter_reason IS NULL) AND (attempts >= max_attempts))",
}

#: These return a row where they hold. That the planner inlines them, tests of plans show.
RULES_WITH_SUBQUERIES = {
    "relay_outbox_ahead",
    "relay_is_held_back",
    "relay_head",
    "relay_may_run",
    "relay_its_turn",
    "relay_another_runs",
    "relay_attempt",
    "relay_inbox_key",
    "relay_may_call",
    # Only where a failure is noted or a person looks, so no plan needs their text.
    "relay_noted",
    "relay_attempts_in_short",
}

# --- reading the catalogue ---

TASK_OUTBOX: dict[str, Column] = {
    "id": (UUID, NOT_NULL, None),
    "type": (TEXT, NOT_NULL, None),
    "payload": (JSONB, NOT_NULL, None),
    "queue": (TEXT, NOT_NULL, "'default'::text"),
    "priority": (INT, NOT_NULL, "50"),
    "status": (TEXT, NOT_NULL, "'pending'::text"),
    "created_at": (TIME, NOT_NULL, "now()"),
    "available_at": (TIME, NULL, None),
    "correlation_id": (UUID, NULL, None),
    "causation_id": (UUID, NULL, None),
    "metadata": (JSONB, NOT_NULL, "'{}'::jsonb"),
    "concurrency_key": (TEXT, NULL, None),
    "seq": (BIGINT, NOT_NULL, "by default as identity"),
    "attempts": (INT, NOT_NULL, "0"),
    "last_error": (TEXT, NULL, None),
    "delivered_at": (TIME, NULL, None),
    "enqueued_at": (TIME, NULL, None),
    "next_attempt_at": (TIME, NULL, None),
    "waits_for": (TEXT, NULL, None),
    "started_at": (TIME, NULL, None),
    "claim_token": (UUID, NULL, None),
    "claimed_until": (TIME, NULL, None),
    "finished_at": (TIME, NULL, None),
    "originals": (JSONB, NULL, None),
    "attempt_log": (JSONB, NULL, None),
    "expires_at": (TIME, NULL, None),
}
TASK_OUTBOX_CONSTRAINTS = {
    "task_outbox_pkey": "PRIMARY KEY (id)",
    "chk_task_status": "CHECK ((status = ANY (ARRAY['pending'::text, 'delivered'::text, 'completed'::text,"
    " 'failed'::text, 'cancelled'::text])))",
    "chk_task_waits_for": "CHECK ((waits_for = ANY (ARRAY['turn'::text, 'room'::text, 'handler'::text,"
    " 'resume'::text])))",
}
TASK_RATES: dict[str, Column] = {
    "type": (TEXT, NOT_NULL, None),
    "free_at": (TIME, NOT_NULL, "now()"),
    "promised_until": (TIME, NOT_NULL, "now()"),
}
RELAY_WAKEUP: dict[str, Column] = {
    "id": (BOOLEAN, NOT_NULL, "true"),
    "sleeping": (BOOLEAN, NOT_NULL, "false"),
    "brake": (TEXT, NULL, None),
    "brake_delay": ("interval", NULL, None),
    "brake_reason": (TEXT, NULL, None),
    "brake_since": (TIME, NULL, None),
    "brake_until": (TIME, NULL, None),
}
TASK_OUTBOX_INDEXES = {
    "idx_task_correlation": "(correlation_id)",
    "idx_task_causation": "(causation_id) WHERE (causation_id IS NOT NULL)",
    "idx_task_due": "(queue, available_at) WHERE ((status = 'pending'::text) AND (available_at IS NOT NULL))",
    "idx_task_finished": "(finished_at) WHERE (finished_at IS NOT NULL)",
    "idx_task_failed": "(seq) WHERE (status = 'failed'::text)",
    "idx_task_ready": "(queue, priority, seq) WHERE ((status = 'pending'::text) AND (available_at IS NULL))",
    "idx_task_running": "(concurrency_key) WHERE (claim_token IS NOT NULL)",
    "idx_task_sweep": "(queue, enqueued_at) WHERE (status = 'delivered'::text)",
    "idx_task_waiting": "(concurrency_key, priority, seq) WHERE (waits_for = 'room'::text)",
}

_COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull,
           CASE attidentity WHEN 'd' THEN 'by default as identity' WHEN 'a' THEN 'always as identity'
                            ELSE pg_get_expr(adbin, adrelid) END
    FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_CONSTRAINTS = """
    SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid = %s::regclass AND contype NOT IN ('n', 't') ORDER BY conname
"""
_INDEXES = """
    SELECT relname, regexp_replace(pg_get_indexdef(indexrelid), '^.* USING btree ', '') FROM pg_index
    JOIN pg_class ON pg_class.oid = indexrelid
    WHERE indrelid = %s::regclass AND NOT indisprimary AND indisvalid ORDER BY relname
"""
_STORAGE = """
    SELECT split_part(option, '=', 1), split_part(option, '=', 2)
    FROM pg_class, unnest(reloptions) AS option WHERE oid = %s::regclass
"""
_TRIGGERS = """
    SELECT tgname, replace(pg_get_triggerdef(oid), format('CREATE TRIGGER %%I ', tgname), '') FROM pg_trigger
    WHERE tgrelid = %s::regclass AND NOT tgisinternal ORDER BY tgname
"""
_FUNCTIONS = "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'relay%' ORDER BY proname"
_RULES = """
    SELECT proname, pg_get_function_sqlbody(pg_proc.oid), provolatile::text || proparallel::text,
           prosecdef OR proisstrict OR proconfig IS NOT NULL
    FROM pg_proc JOIN pg_language ON pg_language.oid = prolang
    WHERE lanname = 'sql' AND pronamespace = 'public'::regnamespace
"""
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
_WAITING = """
    SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
    WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()
"""

Connection = psycopg.Connection[Any]


def columns(conn: Connection, table: str) -> dict[str, Column]:
    return {name: (kind, null, default) for name, kind, null, default in conn.execute(_COLUMNS, [table])}


def constraints(conn: Connection, table: str) -> dict[str, str]:
    return dict(conn.execute(_CONSTRAINTS, [table]).fetchall())


def indexes(conn: Connection, table: str) -> dict[str, str]:
    return dict(conn.execute(_INDEXES, [table]).fetchall())


def storage(conn: Connection, table: str) -> dict[str, str]:
    return dict(conn.execute(_STORAGE, [table]).fetchall())


def triggers(conn: Connection, table: str) -> dict[str, str]:
    return dict(conn.execute(_TRIGGERS, [table]).fetchall())


def rules(conn: Connection) -> dict[str, tuple[str, str, bool]]:
    """The functions in SQL: text, volatility and safety in parallel, and whether they cannot be inlined."""
    return {name: (text, kind, called) for name, text, kind, called in conn.execute(_RULES)}


def tables(conn: Connection) -> list[str]:
    return [name for (name,) in conn.execute(_TABLES)]


def shape(conn: Connection, table: str) -> dict[str, Any]:
    """Columns, constraints and indexes."""
    return {
        "columns": list(columns(conn, table).items()),
        "constraints": constraints(conn, table),
        "indexes": indexes(conn, table),
    }


def everything(conn: Connection) -> dict[str, Any]:
    """All that a migration makes, the rows it inserts included."""
    return {
        "functions": conn.execute(_FUNCTIONS).fetchall(),
        "version": conn.execute("SELECT * FROM relay_alembic_version").fetchall(),
        "wakeup": conn.execute("SELECT * FROM relay_wakeup").fetchall(),
        "lease": conn.execute("SELECT * FROM scheduler_lease").fetchall(),
        **{
            table: shape(conn, table) | {"storage": storage(conn, table), "triggers": triggers(conn, table)}
            for table in tables(conn)
        },
    }


def waiting_for_advisory_locks(conn: Connection) -> int:
    """How many sessions of this database wait for an advisory lock."""
    return next(iter(conn.execute(_WAITING).fetchone() or [0]))
