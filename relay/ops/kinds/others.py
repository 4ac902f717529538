"""Parked keys, jobs of the schedule, archived rows, dead jobs and others: described once, with own pages."""

from __future__ import annotations

from typing import Final

from relay.ops.kinds.model import Action, Column, Filter, Listing

PARKED: Final = Listing(
    path="parked",
    command="parked",
    title="Parked keys",
    one="parked key",
    many="parked keys",
    listing="List the keys that ordered subscriptions have set aside, the longest parked first.",
    columns=(
        Column(name="subscription", label="Subscription"),
        Column(name="key", label="Key", show="code"),
        Column(name="waiting", label="Waiting behind", show="number"),
        Column(name="since", label="Since", show="time"),
        Column(name="head", label="Message that died", show="life"),
        Column(name="reason", label="Reason", show="reason"),
    ),
    table=("subscription", "key", "head", "waiting", "since", "reason"),
    actions=(
        Action(
            name="release",
            label="Release",
            about="Let keys go on in order: first the dead message, with new attempts, "
            "then the messages behind it.",
            past="released",
        ),
    ),
)
JOBS: Final = Listing(
    path="schedule",
    command="schedule",
    title="Schedule",
    one="job",
    many="jobs",
    listing="List what is scheduled, with the last run and the next, and who leads.",
    columns=(
        Column(name="name", label="Job", typed="job"),
        Column(name="schedule", label="When", show="code"),
        Column(name="last_run_at", label="Last run", show="time", typed="last_run"),
        Column(name="outcome", label="How it went", show="outcome"),
        Column(name="error", label="Error", on_page=False),
        Column(name="requested_at", label="Run asked for", show="time", on_page=False),
        Column(name="paused_at", label="Paused since", show="time", on_page=False),
        Column(name="next_run_at", label="Next run", show="time", typed="next_run"),
    ),
    table=("name", "outcome", "last_run_at", "next_run_at", "schedule", "error"),
    actions=(
        Action(
            name="run",
            label="Run now",
            about="Run a job now, outside its schedule. The scheduler that leads begins it at once.",
            past="run",
            done="How it went is on the page of its runs.",
        ),
        Action(
            name="pause",
            label="Pause",
            about="Pause a cron job: it begins no run until it is resumed. An open run goes on, "
            "and `run` still works.",
            past="paused",
            done="It rests.",
        ),
        Action(
            name="resume",
            label="Go on",
            about="Let a cron job go on. One run makes up for missed ones, "
            "unless the last is longer ago than the job's grace.",
            past="resumed",
            done="It goes on.",
        ),
    ),
)
REPLAYS: Final = Listing(
    path="replays",
    command="inbox",
    title="Replays",
    one="replay",
    many="replays",
    listing="Replays of old messages into one inbox, the newest first, and how far each has come.",
    columns=(
        Column(name="id", label="No.", show="number"),
        Column(name="state", label="State", show="state"),
        Column(name="subscription", label="Subscription"),
        Column(name="added", label="New", show="number"),
        Column(name="repeated", label="Again", show="number"),
        Column(name="skipped", label="Skipped", show="number"),
        Column(name="source", label="Reads"),
        Column(name="position", label="At", show="number"),
        Column(name="last_position", label="Of", show="number", typed="of"),
        Column(name="asked_at", label="Asked", show="time", typed="asked"),
        Column(name="actor", label="Who", typed="who"),
        Column(name="error", label="Error"),
    ),
    table=(
        *("id", "state", "subscription", "added", "repeated", "skipped", "source", "position", "last_position"),
        *("asked_at", "actor", "error"),
    ),
    actions=(
        Action(
            name="start",
            label="Replay",
            about="Put old messages of the stream, the outbox and the archive into the inbox of one subscription. "
            "Workers do it, and no other subscription sees them.",
            past="started",
            done="Workers begin within seconds.",
        ),
        Action(
            name="stop",
            label="Stop",
            about="Stop a replay. What it has put into the inbox stays there.",
            past="stopped",
            done="It stops with its next step.",
        ),
    ),
)
#: Pauses and limits at run time. Every action is repeatable, and has one that takes it back.
CONTROLS: Final = Listing(
    path="controls",
    command="controls",
    title="Pauses and limits",
    one="pause or limit",
    many="pauses and limits",
    listing="List what is paused or limited now: until when, by whom, and why.",
    columns=(
        Column(name="what", label="What"),
        Column(name="name", label="Name"),
        Column(name="act", label="Act"),
        Column(name="limit", label="Limit"),
        Column(name="former", label="Limit before"),
        Column(name="until", label="Until", show="time"),
        Column(name="since", label="Since", show="time"),
        Column(name="by", label="By"),
        Column(name="reason", label="Why", show="reason"),
    ),
    table=("what", "name", "act", "limit", "until", "by", "since", "former", "reason"),
    actions=(
        Action(
            name="pause",
            label="Pause",
            about="Pause a subscription, a type or queue of tasks, a type of events, or all publishing of a "
            "context: nothing of it begins from now on. What runs ends, nothing is lost, and no attempt is spent.",
            past="paused",
            done="It rests.",
            undo="resume",
        ),
        Action(
            name="resume",
            label="Resume",
            about="Let go on what is paused. What has waited begins within seconds, in its order.",
            past="resumed",
            done="It goes on.",
            undo="pause",
        ),
        Action(
            name="limit",
            label="Limit",
            about="Limit how much of a subscription or of a type of tasks runs at once, and how much begins in a "
            "time, in the whole fleet. Without a number the limit is lifted.",
            past="limited",
            done="The limit holds.",
            undo="restore",
        ),
        Action(
            name="restore",
            label="Undo the limit",
            about="Put the limit back that was there before the last change.",
            past="restored",
            done="The limit before holds again.",
        ),
    ),
)
AUDIT: Final = Listing(
    path="audit",
    command="audit",
    title="Audit log",
    one="entry",
    many="entries",
    listing="List who did what to which rows, when and why, the newest first.",
    filters=(
        Filter(name="actor", label="Who", meaning="Who did it"),
        Filter(name="action", label="Action", meaning="What was done", hint="dlq.requeue"),
        Filter(name="id", label="Row", meaning="The id of a row to which it was done", form="text"),
        Filter(name="since", label="Since", meaning="Only entries since", form="time", how="90m, or a time"),
        Filter(name="until", label="Until", meaning="Only entries before", form="time", how="90m, or a time"),
    ),
    columns=(
        Column(name="id", label="No.", show="number"),
        Column(name="at", label="When", show="time", typed="when"),
        Column(name="actor", label="Who", typed="who"),
        Column(name="action", label="Action", show="code"),
        Column(name="count", label="Rows", show="number", typed="rows"),
        Column(name="ids", label="Which", holds="list", typed="which"),
        Column(name="note", label="Why", typed="why"),
    ),
    table=("id", "at", "actor", "action", "count", "ids", "note"),
    actions=(
        Action(
            name="undo",
            label="Undo",
            about="Take back an act, for all of its rows that no later act has changed. Nothing runs. "
            "A discard, resolve, snooze or cancel can be undone.",
            past="undone",
        ),
    ),
)
#: Its columns are those of a batch, its filters those of the rows in the files.
ARCHIVED: Final = Listing(
    path="archive",
    command="archive",
    title="Archive",
    one="batch",
    many="batches",
    listing="List the batches in the archive.",
    filters=(
        Filter(
            name="subject", label="Subject", meaning="A subject, or a pattern with * and >", hint="sea.event.>"
        ),
        Filter(name="type", label="Type", meaning="The type of the event or task"),
        Filter(name="key", label="Key", meaning="The partition key; a task's concurrency key"),
        Filter(
            name="correlation_id",
            label="Correlation",
            meaning="The correlation id",
            form="id",
            option="correlation",
        ),
        Filter(
            name="since",
            label="Ended since",
            meaning="Only those that ended since",
            form="time",
            how="400d, or a time",
            hint="400d",
        ),
        Filter(
            name="until",
            label="Ended before",
            meaning="Only those that ended before",
            form="time",
            how="90d, or a time",
            hint="2026-01-31",
        ),
    ),
    columns=(
        Column(name="kind", label="Kind"),
        Column(name="number", label="No.", show="number"),
        Column(name="rows", label="Rows", show="number"),
        Column(name="size", label="Size", show="size"),
        Column(name="first_at", label="First", show="time"),
        Column(name="last_at", label="Last", show="time"),
        Column(name="file", label="File", show="code"),
    ),
    table=("kind", "number", "rows", "size", "first_at", "last_at", "file"),
    actions=(
        Action(
            name="restore",
            label="Restore",
            about="Put archived rows back into their table, as they were. Nothing is sent, and the archive keeps "
            "them; its next run moves them away again. A row that the table still has stays as it is.",
            past="restored",
        ),
        Action(
            name="replay",
            label="Replay",
            about="Publish archived events once more, to every consumer of the stream. The archive keeps them. "
            "Consumers recognise the ids, also of messages that they have archived, until they delete these. "
            "Events that were replayed since they were archived are left out.",
            past="published once more",
        ),
    ),
)
RETENTION: Final = Listing(
    path="retention",
    command="retention",
    title="Retention",
    one="rule",
    many="rules",
    listing="List what is kept, how long and by which setting, how much there is, and when the next of it goes.",
    columns=(
        Column(name="place", label="Where"),
        Column(name="name", label="What", show="code"),
        Column(name="ends", label="Ends by", meaning="What takes it away: time, act, replaced, or never"),
        Column(name="keeps", label="Kept for", holds="number", meaning="For how many seconds"),
        Column(name="setting", label="Setting", show="code"),
        Column(name="rows", label="Rows", show="number"),
        Column(name="size", label="Size", show="size"),
        Column(name="oldest_at", label="Oldest", show="time", typed="oldest"),
        Column(name="next_at", label="Next goes", show="time", typed="next"),
        Column(name="rule", label="Rule"),
    ),
    table=("place", "name", "ends", "keeps", "setting", "rows", "size", "oldest_at", "next_at", "rule"),
    actions=(),
)
#: Persons with keys, in all contexts at once. They are not listed: who looks knows whom.
PERSONS: Final = Listing(
    path="persons",
    command="forget",
    title="Personal data",
    one="key",
    many="keys",
    listing="The certificate: which keys of a person are destroyed, where, when and by whom, and which are not.",
    columns=(
        Column(name="context", label="Context"),
        Column(name="id", label="Key", show="id"),
        Column(name="made", label="Made", show="time"),
        Column(name="destroyed", label="Destroyed", show="time"),
        Column(name="by", label="By"),
        Column(name="deed", label="Act", show="number"),
    ),
    table=("context", "id", "made", "destroyed", "by", "deed"),
    actions=(
        Action(
            name="forget",
            label="Forget",
            about="Forget a person: destroy the keys of all personal values, in each context, for ever. What is "
            "stored stays, and nobody can read these values any more. Again it changes nothing.",
            past="forgotten",
            needs_note=True,
            harsh=True,
        ),
    ),
)
DEAD_JOBS: Final = Listing(
    path="queues",
    command="queues",
    title="Queues",
    one="job",
    many="jobs",
    listing="List jobs of a queue: dead jobs, the last that died first, or delayed jobs.",
    columns=(
        Column(name="id", label="Job", show="id"),
        Column(name="actor", label="Actor"),
        Column(name="share", label="Share"),
        Column(name="created_at", label="Made", show="time"),
        Column(name="at", label="Died", show="time"),
        Column(name="args", label="About", show="code", holds="list"),
    ),
    table=("id", "at", "actor", "share", "created_at", "args"),
    actions=(
        Action(
            name="requeue",
            label="Requeue",
            about="Run dead jobs again, with new attempts.",
            past="requeued",
        ),
        Action(
            name="delete",
            label="Delete",
            about="Remove dead jobs. Their rows stay as they are, and bring back a job that is needed.",
            past="deleted",
            harsh=True,
        ),
    ),
)
OTHERS: Final = {it.path: it for it in (PARKED, JOBS, CONTROLS, ARCHIVED, DEAD_JOBS)}
