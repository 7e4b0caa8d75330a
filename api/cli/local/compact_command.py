"""`compactor compact-topic`: one topic or many, in one job for all; with `--dry-run` a report of the run.

Topics without new messages are recognized without an engine: Spark takes seconds to start, and starts only if a topic
needs it. Topics of one engine share its jobs. A topic that fails is reported on stderr, the others continue; the exit
code is that of the first failure.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from api.cli.kit import exit_codes
from api.cli.kit.quantity_parsers import duration_option, size_option
from api.cli.kit.shared_arguments import TOPIC_HELP
from api.cli.kit.stderr import say
from api.cli.local.engine import open_engine, progress_for
from api.cli.local.opening import open_topic
from api.components import open_existing_for_writing
from storage.environment import Environment
from storage.errors import CompactorError, InvalidInput, Misconfigured, Unavailable
from storage.model import TopicName

if TYPE_CHECKING:
    from api.cli.local.compact_report import Estimate
    from api.settings.settings import Settings
    from compactor.batch import Outcome
    from compactor.run.plan import RunPolicies
    from compactor.two_phase import PoliciesOf, TwoPhaseCompactor
    from storage.metadata.records import TopicRecord, TopicSnapshot
    from storage.objects.throttled import RateLimits
    from storage.topic import Topic


def compact_topic(
    context: typer.Context,
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help=TOPIC_HELP)] = None,
    topic: Annotated[list[str] | None, typer.Option(metavar="TOPIC", help=f"May be repeated. {TOPIC_HELP}")] = None,
    all_topics: Annotated[bool, typer.Option("--all", help="All topics.")] = False,
    namespace: Annotated[
        str | None, typer.Option(metavar="TENANT/NAMESPACE", help="All topics of this namespace.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report what a run would keep, drop and write.")
    ] = False,
    output: Annotated[
        Literal["text", "json"], typer.Option(help="For people, or for scripts: one JSON object a topic.")
    ] = "text",
    retain_null_key: Annotated[
        bool | None, typer.Option("--retain-null-key", help="Keep messages without a key.")
    ] = None,
    tombstone_retention_ms: Annotated[
        int | None, duration_option("--tombstone-retention", "Time that tombstones stay in the compacted ledger.")
    ] = None,
    tombstones_wait_for_cursors: Annotated[
        bool | None,
        typer.Option(
            "--tombstones-wait-for-cursors", help="Keep them also until the slowest compacted cursor has passed them."
        ),
    ] = None,
    key_ttl_ms: Annotated[int | None, duration_option("--key-ttl", "Drop values older than this.", least=1)] = None,
    min_lag_ms: Annotated[
        int | None, duration_option("--min-compaction-lag", "Minimum age of the messages that this run compacts.")
    ] = None,
    event_time_order: Annotated[
        bool | None,
        typer.Option("--event-time-order", help="The largest event time of a key wins, not the newest message."),
    ] = None,
    event_time_max_lateness_ms: Annotated[
        int | None, duration_option("--event-time-max-lateness", "Time that a deletion overrides late values.")
    ] = None,
    incomplete_chunk_max_age_ms: Annotated[
        int | None, duration_option("--chunk-expiry", "Time that an incomplete chunked message is kept.", least=1)
    ] = None,
    max_garbage_ratio: Annotated[
        float, typer.Option(metavar="RATIO", help="Write a part again when more of its rows, from 0 to 1, are dead.")
    ] = 0.5,
    max_read_rate: Annotated[
        int | None,
        size_option("--max-read-rate", "Most bytes read a second; K, M and G are allowed.", least=1),
    ] = None,
    max_write_rate: Annotated[
        int | None, size_option("--max-write-rate", "Most bytes written a second.", least=1)
    ] = None,
) -> None:
    """Keep the newest message of each key.

    They go to a new compacted ledger; the topic's raw messages do not change. Many topics share one job.
    Options that are policies take precedence over the topic's own (`compactor topics policies`), for this run only.
    Durations are whole numbers with ms, s, m, h or d; a bare number is seconds.
    """
    listed = [*(topics or ()), *(topic or ())]
    if sum((bool(listed), all_topics, namespace is not None)) != 1:
        raise InvalidInput(
            "compact-topic takes topics in exactly one way",
            "name topics, by themselves or with --topic, or give --all, or --namespace tenant/namespace",
        )
    parsed = list(dict.fromkeys(map(TopicName.parse, listed)))
    if event_time_max_lateness_ms is not None and not event_time_order:
        raise InvalidInput("--event-time-max-lateness means nothing by itself", "give --event-time-order with it")
    if not 0 <= max_garbage_ratio <= 1:
        raise InvalidInput(f"{max_garbage_ratio} is not a ratio", "give --max-garbage-ratio a number from 0 to 1")

    with open_existing_for_writing(context.obj) as environment:
        from api.cli.local.compact_report import report_estimates, report_outcomes
        from compactor.run.run_policies import POLICY_OF
        from storage.objects.throttled import RateLimits

        rates = RateLimits(max_read_rate, max_write_rate)
        options = {item.name: item.opts[0] for item in context.command.params if item.name in POLICY_OF}
        overrides = {name: value for name in options if (value := context.params[name]) is not None}
        work = _CompactionCommand(environment, context.obj, options, overrides, rates, max_garbage_ratio)
        names = parsed or _topic_names(environment, namespace)
        as_json = output == "json"
        if dry_run:
            first = report_estimates(work.estimate_runs(names), as_json)
        else:
            first = report_outcomes(environment.metadata, len(names), work.compact(names), as_json)
    if first is not None:
        raise typer.Exit(exit_codes.exit_code_of(first))


def _topic_names(environment: Environment, namespace: str | None) -> list[TopicName]:
    """Return the topics of a namespace, or all topics for None; report on stderr if there are none."""
    metadata = environment.metadata
    if namespace is not None:
        metadata.tenancy.namespace(namespace)  # raises NotFound
    topics = metadata.topics.all() if namespace is None else metadata.topics.in_namespace(namespace)
    names = [topic.name for topic in topics]
    if not names:
        say("There are no topics." if namespace is None else f"The namespace {namespace} has no topics.")
    return names


def _has_unsealed_messages(topic: Topic, snapshot: TopicSnapshot) -> bool:
    """Return whether segments hold messages that no ledger has yet; True if a segment cannot be read here."""
    segments = snapshot.segments
    if not segments or any(segment.content is not None and segment.content.messages for segment in segments):
        return bool(segments)
    try:
        return topic.snapshot_reader().end > segments[-1].first_offset
    except CompactorError:
        return True


def _compact_all(
    compactor: TwoPhaseCompactor | CompactorError, topics: Sequence[TopicName], policies: PoliciesOf
) -> Iterable[Outcome]:
    """Compact the topics; the error of an engine that did not open is the outcome of each."""
    from compactor.batch import Outcome

    if isinstance(compactor, CompactorError):
        return [Outcome(name, None, compactor) for name in topics]
    return compactor.compact_all(topics, policies)


@dataclass(frozen=True)
class _CompactionCommand:
    """Compaction of the topics of one command, or its estimate. `options`: the command-line option of each policy.
    `overrides`: policies that take precedence over those of each topic."""

    environment: Environment
    settings: Settings
    options: Mapping[str, str]
    overrides: Mapping[str, Any]
    rates: RateLimits
    max_garbage_ratio: float

    def compact(self, names: Sequence[TopicName]) -> Iterator[Outcome]:
        """Compact the topics. Yield the outcome of each, in order, as soon as it is known."""
        known, dirty = self._outcomes_and_topics_to_compact(names, for_a_run=True)
        pending = deque(names)

        def take_known() -> Iterator[Outcome]:
            while pending and pending[0] in known:
                yield known[pending.popleft()]

        for policy, topics in dirty.items():
            with self._open_compactor_or_error(policy, is_needed=set(dirty) == {None}) as compactor:
                for outcome in _compact_all(compactor, topics, self._run_policies):
                    known[outcome.topic] = outcome
                    yield from take_known()
        yield from take_known()

    def estimate_runs(self, names: Sequence[TopicName]) -> list[Estimate]:
        """Estimate a run of each topic by a dry run. Return each topic with its estimate, None if there is nothing to
        do, or an error."""
        outcomes, dirty = self._outcomes_and_topics_to_compact(names)
        estimates: dict[TopicName, dict[str, object] | Exception] = {
            name: {} if outcome.error is None else outcome.error for name, outcome in outcomes.items()
        }
        for policy, topics in dirty.items():
            with self._open_compactor_or_error(policy, is_needed=set(dirty) == {None}) as compactor:
                for name in topics:
                    try:
                        estimates[name] = (
                            compactor
                            if isinstance(compactor, CompactorError)
                            else compactor.dry_run(name, self._run_policies)
                        )
                    except Exception as error:
                        estimates[name] = error
        return [(name, self._add_unsealed_messages(name, estimates[name])) for name in names]

    def _add_unsealed_messages(
        self, name: TopicName, estimate: dict[str, object] | Exception
    ) -> dict[str, object] | Exception | None:
        """Return an estimate with the fields `unsealed_messages` and `unsealed_bytes` if the topic has any: a run seals
        them first.

        None: nothing to compact and nothing unsealed. An error, passed or met, is returned.
        """
        if isinstance(estimate, Exception):
            return estimate
        from compactor.scheduling.backlog import unsealed_backlog

        try:
            tail = unsealed_backlog(self.environment.log, open_topic(self.environment, name).snapshot())
        except CompactorError as error:
            return error
        if not tail.messages:
            return estimate or None
        return {**estimate, "unsealed_messages": tail.messages, "unsealed_bytes": tail.bytes}

    def _outcomes_and_topics_to_compact(
        self, names: Sequence[TopicName], *, for_a_run: bool = False
    ) -> tuple[dict[TopicName, Outcome], dict[str | None, list[TopicName]]]:
        """Return the outcomes of topics without new messages or with an error, and the other topics by their policy
        compaction.topic-engine; None: it is not set.

        `for_a_run`: a paused topic is refused, and unsealed messages are new, since the claim seals them (P2).
        """
        from compactor.batch import Outcome
        from compactor.two_phase import has_nothing_new
        from storage.metadata.compaction_control_rows import check_not_paused

        environment = self.environment
        outcomes: dict[TopicName, Outcome] = {}
        dirty: dict[str | None, list[TopicName]] = {}
        for name in names:
            try:
                topic = open_topic(environment, name)
                snapshot = topic.snapshot()
                if for_a_run:
                    check_not_paused(snapshot.topic, environment.metadata.compaction_control.get(snapshot.topic.id))
                policies = self._run_policies(snapshot.topic)
                new = not has_nothing_new(
                    environment.metadata, environment.store, environment.clock, snapshot, policies
                )
                new = new or (for_a_run and _has_unsealed_messages(topic, snapshot))
                engine = environment.metadata.policies.resolve_policies(snapshot.topic).policies.compaction_topic_engine
            except (Unavailable, Misconfigured):
                raise  # not a problem of this topic: the next would fail, too
            except Exception as error:
                outcomes[name] = Outcome(name, None, error)
                continue
            if new:
                self._report_overrides_and_last_run_differences(snapshot, policies)
                dirty.setdefault(engine, []).append(name)
            else:
                outcomes[name] = Outcome(name)
        return outcomes, dirty

    def _run_policies(self, topic: TopicRecord) -> RunPolicies:
        """Return the policies of a topic's run: those in `overrides`, else the topic's own."""
        from compactor.run.run_policies import run_policies_from_stored

        return replace(run_policies_from_stored(self.environment.metadata, topic, self.overrides), **self.overrides)

    def _report_overrides_and_last_run_differences(self, snapshot: TopicSnapshot, policies: RunPolicies) -> None:
        """Report options that override a stored policy in this run, and policies that differ from those of the previous
        run: messages that only the previous ones kept are dropped."""
        from compactor.run.run_policies import POLICY_OF, names_of_differing_overrides
        from storage.metadata.records import RunState

        for name in names_of_differing_overrides(self.environment.metadata, snapshot.topic, self.overrides):
            say(f"{snapshot.topic.name}: {self.options[name]} counts before the policy {POLICY_OF[name]} in this run")
        before = snapshot.last_run
        if before is None or before.state is not RunState.SUCCESS or snapshot.compacted is None:
            return
        current = asdict(policies)
        changed = [option for name, option in self.options.items() if before.policies.get(name) != current[name]]
        if changed:
            say(
                f"warning: {snapshot.topic.name} is compacted by other policies than in run {before.run_id} "
                f"({', '.join(changed)}): what only those kept is dropped"
            )

    @contextmanager
    def _open_compactor_or_error(
        self, engine_policy: str | None, *, is_needed: bool
    ) -> Iterator[TwoPhaseCompactor | CompactorError]:
        """Open the compactor for topics with an engine policy. Yield the error of the engine if it cannot be opened.

        `is_needed`: no topic can be compacted without this engine, so its error is raised.
        """
        with ExitStack() as stack:
            compactor: TwoPhaseCompactor | CompactorError
            try:
                compactor = stack.enter_context(self._open_compactor(engine_policy))
            except CompactorError as error:
                if is_needed:
                    raise
                compactor = error
            yield compactor

    @contextmanager
    def _open_compactor(self, engine_policy: str | None) -> Iterator[TwoPhaseCompactor]:
        """Open a compactor with an engine of its own. `engine_policy`: as `policy` of `open_engine`."""
        from compactor.run.plan import Sizing
        from compactor.two_phase import TwoPhaseCompactor

        with open_engine(self.settings, engine_policy) as engine:
            yield TwoPhaseCompactor(
                self.environment,
                engine,
                progress_for(sys.stderr),
                Sizing(engine.parallelism, max_garbage_ratio=self.max_garbage_ratio),
                self.rates,
                stalled_ms=self.settings.compaction_stalled_after_ms,
            )
