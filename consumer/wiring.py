"""Builds what a subscription needs on a worker: each object once, on the worker's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from functools import cache, partial
from typing import Any, Final, TypeAlias
from uuid import UUID

from consumer.circuit import KeepCircuit
from consumer.correcting import CorrectDeadLetters
from consumer.corrections import TIME_LIMIT, corrections
from consumer.deadletters import RecordDeadLetters
from consumer.functions import PythonEventHandler, check_commands, check_subscriptions, has_plain
from consumer.handlers import load
from consumer.key_order import DeliveryNumbers, NextOfKey
from consumer.large import BringPayloads, apart
from consumer.message_rows import FunctionRows, MessageConfig, MessageRows, ahead_on_loop, waiting_messages
from consumer.personal import OpenRequests
from consumer.pull import PullConfig, PullMessages, enqueue_chunks
from consumer.recovery import Recovery
from consumer.replay import Producer, ReplayIntoInbox
from consumer.waiting import WaitForVersion
from consumer.window import Window
from relay import jobs
from relay.adapters.dramatiq.broker import delayed
from relay.adapters.dramatiq.runtime import event_loop
from relay.adapters.http import HttpEventHandler
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor, StreamReader
from relay.adapters.postgres.archive import PostgresArchive
from relay.adapters.postgres.circuits import PostgresCircuits
from relay.adapters.postgres.inbox_chunks import PostgresChunks
from relay.adapters.postgres.limited_inbox import LimitedInbox
from relay.adapters.postgres.replays import PostgresReplays, PublishedEvents
from relay.bootstrap import cold_store, kept_payloads
from relay.commands.coldrows import ColdRows, archived_subject
from relay.credentials import http_access
from relay.domain import outages
from relay.domain.circuit import CircuitPolicy
from relay.domain.envelopes import Envelope
from relay.domain.errors import ConfigurationError
from relay.domain.history import Of
from relay.domain.members import handled_name
from relay.domain.retry import Backoff, RetryPolicy
from relay.domain.topology import advisory_consumer
from relay.envelopes import reader, writer
from relay.execution.chunk import ChunkRows, RunChunk, side_by_side
from relay.execution.runners import GATHER_BUSY_S, GATHER_S, Completions, RunInThread, RunOnLoop, RunRow
from relay.ports import ClaimedMessage, HandlerRequest, JetStreamConsumer
from relay.settings.urls import hide_url
from relay.worker import application, broker, checks, handled, runtime, serves

#: From so many messages on, a window has room for those that are done and wait to be acknowledged.
_WIDE_WINDOW: Final = 100
#: How many messages a pull request asks for at most.
_MAX_BATCH_MESSAGES: Final = 300

Messages: TypeAlias = RunRow[UUID, ClaimedMessage, HandlerRequest]


def on_receipt(context: str, subscription: str) -> bool:
    """Return whether a message is acknowledged as soon as its inbox row is committed."""
    return application.subscription(context, subscription).settle == "inbox"


def gives_back(context: str, subscription: str) -> bool:
    """Tell whether a message that failed is given back to JetStream until its next attempt."""
    return application.subscription(context, subscription).on_failure == "nak"


def enqueue(context: str, subscription: str) -> Callable[[Sequence[UUID]], Awaitable[None]]:
    """Return a function that enqueues messages of a subscription for the workers, in chunks of its size."""
    size = application.subscription(context, subscription).chunk
    return partial(enqueue_chunks, broker, context, subscription, size)


async def enqueue_later(context: str, subscription: str, delays: dict[UUID, timedelta]) -> None:
    """Enqueue messages that were tried before, each alone and after its own delay."""
    messages = [(jobs.handle(context, subscription, [str(id)], again=True), delay) for id, delay in delays.items()]
    if messages:
        again = [delayed(message, delay) if delay else message for message, delay in messages]
        await asyncio.to_thread(broker.enqueue_many, again)


@cache
def calls_plain_functions(context: str, subscription: str) -> bool:
    """Return whether a subscription's messages need threads."""
    declared = application.settings.contexts.get(context)
    settings = None if declared is None else declared.subscriptions.get(subscription)
    if settings is None:
        # A message of a subscription that is gone: its actor raises, in a thread.
        return True
    return settings.python_module is not None and has_plain(load(settings.python_module).of(subscription))


@cache
def _handler(context: str, name: str) -> HttpEventHandler | PythonEventHandler:
    """The handler of a subscription. A process has only one of each, so that connections are reused.

    Raises InvalidHandler and ConfigurationError.
    """
    settings = application.subscription(context, name)
    if settings.python_module is not None:
        registry = load(settings.python_module).of(name)
        transactions = application.transactions(context, "handler", settings.handler_timeout)
        return PythonEventHandler(
            registry, transactions, timeout=settings.handler_timeout, unknown=settings.unknown
        )
    handler = HttpEventHandler(
        settings.handler,
        timeout=settings.handler_timeout,
        connect_timeout=settings.connect_timeout,
        access=http_access(settings, f"contexts.{context}.subscriptions.{name}"),
    )
    application.on_stop.append(handler.close)
    return handler


@cache
def _envelope(context: str, subscription: str) -> Envelope:
    """What reads the messages of a subscription. Raises ConfigurationError."""
    return reader(application.settings, context, subscription)


def _waits(context: str, subscription: str) -> WaitForVersion | None:
    """What lets messages of a newer version wait; None if they do not."""
    settings = application.subscription(context, subscription)
    if settings.python_module is None or settings.unknown != "wait":
        return None
    return WaitForVersion(
        context=context,
        subscription=subscription,
        knows=application.members.handle,
        longest=settings.retry_after_for,
        unseen=settings.unknown_for,
    )


def _opens(context: str, subscription: str) -> OpenRequests | None:
    """What decrypts personal values for a handler; None if it gets them as they are."""
    settings, values = application.subscription(context, subscription), application.personal
    if values is None or (settings.python_module is None and settings.personal != "plain"):
        return None
    return OpenRequests(values, settings.forgotten)


@cache
def _rows(context: str, subscription: str) -> MessageRows:
    settings = application.subscription(context, subscription)
    config = MessageConfig(
        context=context,
        subscription=subscription,
        envelope=_envelope(context, subscription),
        policy=RetryPolicy(
            max_attempts=settings.max_attempts,
            backoff=Backoff(initial=settings.backoff_initial, maximum=settings.backoff_max),
            longest=settings.retry_after_max,
            patience=settings.retry_after_for,
        ),
        acked=on_receipt(context, subscription),
        nak=gives_back(context, subscription),
        error_text=settings.error_detail == "text",
        limit=settings.limit,
    )
    handler = _handler(context, subscription)
    kind: Any = FunctionRows if isinstance(handler, PythonEventHandler) else MessageRows
    rows: MessageRows = kind(
        config=config,
        inbox=application.inbox(context, subscription),
        handler=handler,
        consumer=application.consumer(context, subscription),
        dead_letters=application.context(context).dead_letters,
        facts=application.facts,
        next_of_key=_next_of_key(context, subscription),
        circuit=circuit(context, subscription),
        window=window(context, subscription),
        controls=application.context(context).controls,
        limited=LimitedInbox(
            application.context(context).pool, application.inbox(context, subscription), subscription
        ),
        enqueue=enqueue(context, subscription),
        tally=application.tallies.of(context, Of.SUBSCRIPTION)[subscription],
        opens=_opens(context, subscription),
        brings=BringPayloads(application.payloads),
        waits=_waits(context, subscription),
    )
    waiting = partial(waiting_messages, runtime, context, subscription)
    rows.ahead = ahead = ahead_on_loop(rows, application.inbox(context, subscription), waiting)
    if ahead is not None:
        application.on_quiesce.append(lambda: event_loop().run_coroutine(ahead.close()))
    return rows


@cache
def circuits(context: str) -> PostgresCircuits:
    """The circuits of a context."""
    return PostgresCircuits(application.context(context).pool)


@cache
def circuit(context: str, subscription: str) -> KeepCircuit | None:
    """What keeps the circuit of a subscription; None if it wants none."""
    settings = application.subscription(context, subscription)
    if not settings.circuit:
        return None
    backoff = Backoff(maximum=settings.circuit_probe_max, jitter=0)
    return KeepCircuit(
        context=context,
        subscription=subscription,
        circuits=circuits(context),
        inbox=application.inbox(context, subscription),
        enqueue=enqueue(context, subscription),
        facts=application.facts,
        policy=CircuitPolicy(
            messages=settings.circuit_messages,
            failures=settings.circuit_failures,
            probe=backoff,
            longest=settings.circuit_longest,
        ),
        single=settings.max_attempts == 1,
        ordered=settings.order != "none",
        pause=settings.backoff_initial,
    )


@cache
def window(context: str, subscription: str) -> Window | None:
    """What keeps room in the window of a subscription; None if all is acknowledged on receipt."""
    if on_receipt(context, subscription):
        return None
    made = Window(
        context=context,
        subscription=subscription,
        inbox=application.inbox(context, subscription),
        consumer=application.consumer(context, subscription),
        facts=application.facts,
    )
    application.on_stop.append(made.end)
    return made


def _next_of_key(context: str, subscription: str) -> NextOfKey | None:
    order = application.order(context, subscription)
    if order is None:
        return None
    return NextOfKey(order, application.consumer(context, subscription), enqueue(context, subscription))


@cache
def _completions(context: str, subscription: str) -> Completions[UUID, ClaimedMessage, HandlerRequest]:
    """What settles the messages of a subscription."""
    rows = _rows(context, subscription)
    # No pause in an ordered subscription: the next message of the key waits for this step.
    pause = 0.0 if rows.ordered else GATHER_S
    window = application.subscription(context, subscription).max_ack_pending
    # Rows that wait hold places in a window, and other messages wait for these.
    busy = GATHER_BUSY_S if pause > 0 and not 0 < window < _WIDE_WINDOW else 0.0
    completions = Completions(rows, asyncio.get_running_loop(), pause=pause, busy=busy)
    application.on_stop.append(completions.drain)
    return completions


@cache
def messages(context: str, subscription: str) -> Messages:
    """What handles the messages of a subscription on the event loop."""
    return RunOnLoop(_rows(context, subscription), _completions(context, subscription).settle)


@cache
def chunks(context: str, subscription: str) -> RunChunk:
    """What handles the chunks of a subscription."""
    handler, order = _handler(context, subscription), application.order(context, subscription)
    claims = PostgresChunks(application.context(context).pool, ordered=order is not None)
    ask_all = handler.handle_all if isinstance(handler, PythonEventHandler) else side_by_side(handler)
    single = _rows(context, subscription)
    if single.opens is not None:
        ask_all = single.opens.before(ask_all)
    ask_all = apart(ask_all, single.ask)
    rows = ChunkRows(single, claims, ask_all)
    return RunOnLoop(rows, rows.settle)


@cache
def in_thread(context: str, subscription: str) -> RunInThread[UUID, ClaimedMessage, HandlerRequest]:
    """What handles the messages of a subscription in worker threads."""
    loop = event_loop()

    async def later(id: UUID, delay: timedelta) -> None:
        await enqueue_later(context, subscription, {id: delay})

    async def make() -> RunInThread[UUID, ClaimedMessage, HandlerRequest]:
        # On the loop, because everything that threads share is built there.
        rows = _rows(context, subscription)
        if not isinstance(rows, FunctionRows):
            raise ConfigurationError(f"{subscription} calls no functions", field="handler")
        run = RunInThread(
            rows=rows,
            on_loop=messages(context, subscription),
            completions=_completions(context, subscription),
            transactions=rows.handler.transactions,
            loop=loop,
            replace_thread=runtime.replace_thread,
            later=later,
            waiting=partial(waiting_messages, runtime, context, subscription),
        )
        application.on_quiesce.append(run.prefetch.close)
        return run

    return loop.run_coroutine(make())


@cache
def pull(context: str, subscription: str) -> PullMessages:
    """What pulls a subscription into its inbox."""
    settings = application.subscription(context, subscription)
    config = PullConfig(
        context=context,
        subscription=subscription,
        envelope=_envelope(context, subscription),
        batch_size=_batch_size(settings.max_ack_pending),
        ack_on_receipt=on_receipt(context, subscription),
        max_inbox=settings.max_inbox,
        limited=bool(settings.limit),
        expires_in=settings.expires_in,
        apart=application.settings.comes_later(context, subscription),
    )
    return PullMessages(
        config=config,
        inbox=application.inbox(context, subscription),
        consumer=application.consumer(context, subscription),
        enqueue=enqueue(context, subscription),
        facts=application.facts,
        order=application.order(context, subscription),
        numbers=numbers(context, subscription),
        window=window(context, subscription),
        controls=application.context(context).controls.now,
    )


@cache
def numbers(context: str, subscription: str) -> DeliveryNumbers | None:
    """What numbers the deliveries of an ordered subscription."""
    order, settings = application.order(context, subscription), application.subscription(context, subscription)
    if order is None:
        return None
    return DeliveryNumbers(subscription, settings.stream, order, application.consumer(context, subscription))


def _batch_size(max_ack_pending: int) -> int:
    """Return at most what JetStream hands out at once; -1 means no limit."""
    return _MAX_BATCH_MESSAGES if max_ack_pending < 0 else min(max_ack_pending, _MAX_BATCH_MESSAGES)


@cache
def record(context: str) -> RecordDeadLetters:
    """What records the dead letters of a context."""
    served = application.context(context)
    consumer = application.fetching(served.settings.dead_letter_spec())
    return RecordDeadLetters(consumer, served.record_incidents)


@cache
def correct(context: str, name: str) -> CorrectDeadLetters | None:
    """What corrects the dead letters of a subscription; None if no function does. All modules are loaded now."""
    found = corrections.of(name, application.subscription(context, name).python_module)
    if not found:
        return None
    transactions = application.transactions(context, "corrections", TIME_LIMIT)
    return CorrectDeadLetters(name, found, application.context(context).incidents, transactions)


def _check_corrections() -> None:
    """Raise InvalidHandler for a function that can never run."""
    known = [it for context in application.settings.contexts.values() for it in context.subscriptions.items()]
    corrections.check([(name, subscription.python_module) for name, subscription in known])


@cache
def recovery(context: str, subscription: str) -> Recovery:
    """What finds and fills the gaps of a subscription's inbox."""
    spec = application.subscription(context, subscription).consumer_spec()
    return Recovery(
        context=context,
        subscription=subscription,
        stream=spec.stream,
        inbox=application.inbox(context, subscription),
        consumer=application.consumer(context, subscription),
        reader=StreamReader(
            application.nats, stream=spec.stream, durable=spec.durable, filter_subject=spec.filter_subject
        ),
        pull=pull(context, subscription),
        facts=application.facts,
        numbers=numbers(context, subscription),
        on_receipt=on_receipt(context, subscription),
        window=window(context, subscription),
    )


def replay(context: str, subscription: str) -> ReplayIntoInbox:
    """What puts old messages of a subscription into its inbox."""
    spec = application.subscription(context, subscription).consumer_spec()
    reads = StreamReader(
        application.nats, stream=spec.stream, durable=spec.durable, filter_subject=spec.filter_subject
    )
    return ReplayIntoInbox(
        stream=spec.stream,
        filter_subject=spec.filter_subject,
        envelope=_envelope(context, subscription),
        replays=PostgresReplays(application.context(context).pool.connection),
        reader=reads,
        auditor=NatsStreamAuditor(application.nats),
        inbox=application.inbox(context, subscription),
        pull=pull(context, subscription),
        producer=_producer(spec.stream),
    )


def _producer(stream: str) -> Producer | None:
    """Where the events of a stream come from, if its context is among ours."""
    for name, settings in application.settings.contexts.items():
        if stream in {it.name for it in settings.event_streams}:
            source, store = application.context(name).pool.connection, cold_store(settings.archive)
            subject = partial(archived_subject, settings.routing)
            cold = None if store is None else ColdRows(PostgresArchive(source, name), store, subject)
            return Producer(
                events=PublishedEvents(source, kept_payloads(name, settings)),
                routing=settings.routing,
                envelope=writer(application.settings, name),
                system_actor=settings.system_actor,
                cold=cold,
            )
    return None


@cache
def advisories(context: str, subscription: str) -> JetStreamConsumer:
    """Where JetStream says which messages it has given up."""
    return application.fetching(advisory_consumer(application.subscription(context, subscription).consumer_spec()))


def _handlers() -> Iterator[str]:
    """The handlers of this process, each once: services by their URL, modules with the events that they handle."""
    subscriptions = [sub for it in application.settings.contexts.values() for sub in it.subscriptions.values()]
    for sub in {sub.handler: sub for sub in subscriptions}.values():
        module = sub.python_module
        yield hide_url(sub.handler) if module is None else f"{sub.handler} ({load(module).known()})"


serves["handlers"] = _handlers
checks.append(_check_corrections)

# Load now, so that a worker does not start with an unusable handler, envelope or credentials.
_modules = [
    (sub.name, load(sub.python_module))
    for context in application.settings.contexts.values()
    for sub in context.subscriptions.values()
    if sub.python_module is not None
]
check_subscriptions(_modules)
outages.add(application.settings.outage_errors)
for _context, _settings in application.settings.contexts.items():
    for _name, _subscription in _settings.subscriptions.items():
        _envelope(_context, _name)
        if _subscription.python_module is None:
            _handler(_context, _name)
        else:
            _registry = load(_subscription.python_module).of(_name)
            check_commands(_registry, _subscription.filter_subject)
            handled.update(handled_name(_context, _name, *it) for it in _registry.versions())
