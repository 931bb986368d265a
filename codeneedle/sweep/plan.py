"""
From a request to a plan, checked before anything starts: which probes are left out, the
context, the grid, what cells take, and which workers measure.
"""

from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from codeneedle.cache_types import Pair
from codeneedle.corpora import registry
from codeneedle.corpora.corpus import Corpus
from codeneedle.engines.engine import Engine, ModelSpec
from codeneedle.engines.pace import CELL, Pace, Price
from codeneedle.engines.survey import Survey, why_impossible
from codeneedle.errors import BadInput
from codeneedle.models import pretrained, sensitivity, weights
from codeneedle.models.kv_cache import Caches, caches_of_plain_attention, why_cacheless
from codeneedle.models.weights import Weights
from codeneedle.probes import USUAL, probes_named, usual_probes_and_why_fewer
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.probe import Probe
from codeneedle.probes.prompts import PromptForm
from codeneedle.records.record import CellRecord
from codeneedle.records.store import Store
from codeneedle.sweep.contexts import (
    checked_or_default_context,
    chosen_or_default_corpus,
    context_of_deciding_sweep,
)
from codeneedle.sweep.folder_names import run_name_without_corpus, store_of_page
from codeneedle.sweep.pairs import (
    REPLACED,
    checked_grid_and_attention_survey,
    refuse_if_cacheless,
    refuse_unknown_types,
    replace_bf16_if_kernelless,
    with_usual_types,
)
from codeneedle.sweep.prompt_form import checked_prompt_form
from codeneedle.sweep.request import Execution, Request
from codeneedle.sweep.workers import (
    Place,
    Worker,
    place_phrase_without_threads,
    worker_places,
)
from codeneedle.system.files import exists, expand_home

READ_AGAIN = 1.21
"""
Prompt tokens of a hybrid model, beside those of one that keeps K and V in every layer.

A state cannot go back to where a question began, so that llama-server reads on from its
last checkpoint: 21 % more tokens were counted on models with random weights.
"""

EngineFor = Callable[[ModelSpec], Engine]
"""Makes the engine that serves a model; `cli` chooses which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step of a sweep that decides, before it begins."""

    what: str  # what it does, as a phrase
    price: Price | None  # what that takes; None if nothing is known


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """What a run that there is goes on with."""

    probe: str  # name of what measures
    pairs: tuple[Pair, ...]  # those that are left
    units: int | None  # up to how many; None for what every pair is asked
    how: str = ""  # how it is measured again, as a phrase; empty of the first time


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one page of a sweep would do: checked, but nothing started yet."""

    request: Request  # what it follows from, with what suits engine and probes
    kept: Request  # what its run folder keeps as a sweep file
    execution: Execution  # what the command uses
    probes: tuple[Probe, ...]  # what measures, in this order
    engine: Engine  # serves the model
    weights: Weights  # header of the weights
    model: str  # short name of the weights
    corpus: Corpus  # the text, before fitting
    context: int  # context size, in tokens
    prompt_form: PromptForm  # form of the prompts
    pairs: tuple[Pair, ...]  # the grid, in running order
    store: Store  # where its records are
    workers: tuple[Worker, ...]  # what measures, side by side
    timing_worker: Worker  # what measures probes that take times
    survey: Survey | None = None
    """
    Where attention would run for each pair, on the device of the first of *workers*;
    None if the engine cannot say.
    """

    replaced: str = ""  # that f16 takes the place of bf16, as a sentence; empty if not
    pace: Pace | None = None
    """How fast the user says that the model is; None for what the engine knows."""

    unread: str = ""  # see `Engine.why_it_cannot_read`
    unread_text: str = ""  # why ordinary text is not scored; empty if it is, or named

    refused: Mapping[str, str] = field(default_factory=dict)
    """
    Why probes that were asked for are not measured, by name; see
    `Engine.why_ability_missing`.
    """

    steps: tuple[PlannedStep, ...] = ()
    """Of a sweep that decides, where they are to be told: `steps.with_steps`."""

    going_on: PlannedTask | None = None
    """Of a run that there is, where that is to be told: `measure.with_next_task`."""

    def refusal(self, pair: Pair) -> str:
        """Why *pair* cannot run here, as a phrase; empty if it can, or is unknown."""
        return why_impossible(self.survey, self.weights, pair)

    def caches(self, pair: Pair) -> Caches | None:
        """The caches of *pair* by the engine, else by the header; None if unknown."""
        told = self.survey.caches(pair) if self.survey else None
        return told or self.caches_by_header(self.context)

    def caches_by_header(self, context: int) -> Caches | None:
        """
        The caches of pairs that no engine answers for.

        None if the engine has its own sizes, or the header tells of caches of another
        kind.
        """
        has_them = self.engine.has_usual_cache_sizes
        return caches_of_plain_attention(self.weights, context) if has_them else None

    def kv_bytes(self, pair: Pair) -> float | None:
        """Size of the caches of *pair*; None if it is unknown."""
        caches = self.caches(pair)
        return caches.cache_bytes_at(self.context, pair) if caches else None

    @property
    def possible_pairs(self) -> tuple[Pair, ...]:
        """The pairs that are not known to be refused, in running order."""
        return tuple(pair for pair in self.pairs if not self.refusal(pair))

    @property
    def pairs_without_kernel(self) -> tuple[Pair, ...]:
        """
        The pairs whose attention would run in no kernel, in running order.

        Empty where no pair has a kernel: then all are alike.
        """
        survey = self.survey
        if survey is None:
            return ()
        pairs = [pair for pair in self.possible_pairs if survey.lacks_kernel(pair)]
        return tuple(pairs) if len(pairs) < len(self.possible_pairs) else ()

    @property
    def is_built_in(self) -> bool:
        """Whether the built-in model is used."""
        return self.request.model is None

    @property
    def reads_corpus(self) -> bool:
        """Whether a probe reads the corpus, so that it must fit the context."""
        settings_of = self.request.settings_of
        return any(
            probe.own_text_name(settings_of(probe), self.engine) is None
            for probe in self.probes
        )

    @property
    def notes_of_weights(self) -> tuple[str, ...]:
        """What the weights alone tell of losses."""
        return (
            *sensitivity.cache_quantization_warnings(
                self.weights, is_rotated=self.is_rotated
            ),
        )

    @property
    def unborne_types(self) -> tuple[str, ...]:
        """Types of K that the weights are predicted not to bear."""
        return sensitivity.unsafe_k_types(self.weights, is_rotated=self.is_rotated)

    @property
    def is_rotated(self) -> bool:
        """Whether quantized caches are rotated."""
        return self.request.rotates and self.engine.rotates_caches

    @property
    def estimates(self) -> Estimates:
        """What is known of the run without a server."""
        return Estimates(
            corpus=self.corpus,
            context=self.context,
            engine=self.engine,
            weights=self.weights,
            is_built_in=self.is_built_in,
            folder=self.store.folder,
            seed=self.request.seed,
            prompt_form=self.prompt_form,
            prefill_no_think=self.request.prefill_no_think,
            setup=self.store.read_intact_setup(),
            is_whole=not self.request.fit,
            decides=self.request.decide,
            pace=self.usual_pace,
            unread=self.unread,
            workers=len(self.workers),
        )

    def bill(self, probe: Probe, *, functions: int | None = None) -> Bill | None:
        """
        An estimate of what a cell of *probe* takes; of recall with so many *functions*,
        or with as many as were chosen. None if it is unknown.
        """
        estimates = replace(self.estimates, functions=functions)
        return self._with_rereading_if_hybrid(
            probe.bill(self.request.settings_of(probe), estimates)
        )

    def bill_of_check(self, probe: Probe) -> Bill | None:
        """An estimate of what checks a pair of *probe*; None if nothing does."""
        if probe.further is None:
            return None
        settings = self.request.settings_of(probe)
        return self._with_rereading_if_hybrid(
            probe.further.planned_check(settings, self.estimates)
        )

    def _with_rereading_if_hybrid(self, bill: Bill | None) -> Bill | None:
        """*bill*, read more than once if the weights are hybrid; None without one."""
        surveyed = self.survey.pairs.values() if self.survey else ()
        # Some layers keep a state that cannot go back to an earlier token.
        is_hybrid = any(of_pair.recurrent_bytes for of_pair in surveyed)
        return _with_rereading(bill) if bill and is_hybrid else bill

    def seconds_of_price(self, price: Price | None) -> float | None:
        """Seconds that *price* is likely to take; None if that is unknown."""
        pace = self.usual_pace
        return None if pace is None or price is None else pace.seconds_for(price)

    @property
    def usual_pace(self) -> Pace | None:
        """How fast the model is, in the mean of pairs; None if that is unknown."""
        return self.pace or self.engine.pace(self.pairs)

    def cell_s(self, probe: Probe, records: Iterable[CellRecord] = ()) -> float | None:
        """
        Seconds that a cell of *probe* takes, about; None if that is unknown.

        By those of *records* that have numbers, before there is one by an estimate.
        """
        times = [r.phases.total_from_launch_s for r in records if r.has_numbers]
        if times:
            return Pace.of_cells(times).seconds_for(CELL)
        bill = self.bill(probe)
        return self.seconds_of_price(bill.price) if bill else None


def plan(
    page: Request,
    execution: Execution,
    *,
    engine_for: EngineFor,
    read: Callable[[str], Corpus] = registry.load,
    weights_at: Callable[[Path], Weights] = weights.read_weights_from_headers,
    with_model_and_types: Callable[[Request], Request] = lambda request: request,
    pace: Pace | None = None,
) -> Plan:
    """
    The plan of a page, checked against engine, weights, disk and corpus.

    The corpus comes last: reading it may take a minute.

    Args:
        page: One page of a request.
        execution: What the command uses.
        engine_for: Makes the engine.
        read: Makes a corpus of its name or path.
        weights_at: Reads the weights at a path.
        with_model_and_types: Adds the model and the types that settings of the engine
            name.
        pace: See `Plan`.

    Raises:
        RequestError: If another request would work.
        MachineError: If this machine cannot run it.
    """
    request = with_model_and_types(page)
    header = weights_at(request.model or pretrained.checked_built_in_path())
    refuse_if_cacheless(header, why_cacheless(header))
    form = checked_prompt_form(request, header)
    if request.corpus:
        registry.refuse_missing_corpus(request.corpus)
    spec = _model_spec(request, header, form)
    engine = engine_for(spec)
    request, unread_text = _with_usual_probes_and_why(request, engine, spec)
    has_types = bool(request.grid_k_types and request.grid_v_types)
    probes, refused = _checked_probes_and_refusals(engine, probes_named(request.probes))
    refuse_unknown_types(request, engine)
    request = with_usual_types(request, engine)
    workers, timing_worker = _workers_and_timing_worker(execution, spec, engine_for)
    context = checked_or_default_context(
        request, header, stretched=engine.stretches_context
    )
    corpus = read(chosen_or_default_corpus(request))
    name = run_name_without_corpus(request, engine, probes) or corpus.name
    draft = Plan(
        request=request,
        kept=page,
        execution=execution,
        probes=tuple(probes),
        engine=engine,
        weights=header,
        model=spec.name,
        corpus=corpus,
        context=context,
        prompt_form=form,
        pairs=(),
        store=store_of_page(request, execution, name, spec.name),
        workers=workers,
        timing_worker=timing_worker,
        pace=pace,
        unread=engine.why_it_cannot_read(context, workers=len(workers)),
        refused=refused,
        unread_text=unread_text,
    )
    return _with_grid_and_survey(_with_adapted_settings(draft), has_types=has_types)


def _with_usual_probes_and_why(
    request: Request, engine: Engine, spec: ModelSpec
) -> tuple[Request, str]:
    """*request* with the usual probes if it names none, and `Plan.unread_text`."""
    if request.probes:
        return request, ""
    named, unread_text = usual_probes_and_why_fewer(
        engine,
        is_built_in=spec.is_tiny,
        is_set=USUAL[0] in request.settings,
    )
    return structs.replace(request, probes=named), unread_text


def _with_adapted_settings(draft: Plan) -> Plan:
    """
    *draft*, whose grid is not known yet, with the settings that suit all that is.

    The context is chosen with them where a sweep decides.
    """
    request, probes = draft.request, draft.probes
    estimates = draft.estimates
    if request.decide:
        context = context_of_deciding_sweep(
            request,
            estimates,
            lambda known: _cell_price_of_each_probe(request, probes, known),
        )
        unread = draft.engine.why_it_cannot_read(context, workers=len(draft.workers))
        draft = replace(draft, context=context, unread=unread)
        estimates = replace(estimates, context=context, unread=unread)
    return replace(draft, request=_adapt_settings(request, probes, estimates))


def _with_grid_and_survey(draft: Plan, *, has_types: bool) -> Plan:
    """
    *draft* with its pairs, where attention of each would run, and what is kept of it.

    Its types are those that the user named if it *has_types*, else the usual ones.
    """
    request, context = draft.request, draft.context
    engine = draft.workers[0].engine  # a survey is of one device: that of the cells
    if not has_types:
        stored = draft.store.read_intact_setup()
        types = replace_bf16_if_kernelless(request.types, engine, context, stored)
        request = structs.replace(request, types=types)
    pairs, survey = checked_grid_and_attention_survey(
        request, draft.execution, engine, context
    )
    return replace(
        draft,
        request=request,
        kept=_request_to_keep(draft.kept, request, context, draft.prompt_form),
        pairs=pairs,
        survey=survey,
        replaced="" if request.types == draft.request.types else REPLACED,
    )


def _checked_probes_and_refusals(
    engine: Engine, asked: Sequence[Probe]
) -> tuple[list[Probe], dict[str, str]]:
    """
    The probes that *engine* can measure, and why it refuses others, by name.

    Raises:
        BadInput: If it does not take one of the arguments, or refuses all probes.
        ToolMissing: If it lacks an ability that one of the probes needs.
    """
    engine.refuse_unusable_arguments()
    refused: dict[str, str] = {}
    for probe in asked:
        for ability in sorted(probe.needs_of(engine)):
            if reason := engine.why_ability_missing(ability):
                refused[probe.name] = reason
    probes = [probe for probe in asked if probe.name not in refused]
    for probe in probes or asked:
        for ability in sorted(probe.needs_of(engine)):
            engine.require(ability)
    return probes, refused


def _with_rereading(bill: Bill) -> Bill:
    """*bill* of a hybrid model, which reads `READ_AGAIN` times as much."""
    price = bill.price
    more = replace(
        price,
        read=READ_AGAIN * price.read,
        read_back=READ_AGAIN * READ_AGAIN * price.read_back,
    )
    return replace(bill, price=more)


def _model_spec(request: Request, header: Weights, form: PromptForm) -> ModelSpec:
    return ModelSpec(
        weights=header,
        name=weights.run_folder_name(header) if request.model else pretrained.BUILT_IN,
        arguments=request.server_args,
        rotation=request.rotates,
        # A completion has no thinking to switch off.
        thinking=form is PromptForm.COMPLETION,
        is_chat=form is PromptForm.CHAT,
        is_tiny=request.model is None,
    )


def _workers_and_timing_worker(
    execution: Execution, spec: ModelSpec, engine_for: EngineFor
) -> tuple[tuple[Worker, ...], Worker]:
    """The workers that measure side by side, and one with all cores for times."""
    sites = worker_places(devices=execution.devices, workers=execution.workers)
    workers = tuple(_worker_at(site, spec, engine_for) for site in sites)
    surveyed = place_phrase_without_threads(workers[0].device)
    for worker in workers:
        worker.is_surveyed = place_phrase_without_threads(worker.device) == surveyed
    return workers, _worker_at(sites[0].with_all_cores(), spec, engine_for)


def _worker_at(place: Place, spec: ModelSpec, engine_for: EngineFor) -> Worker:
    """What measures at *place*; refuses a device that the engine does not see."""
    engine = engine_for(replace(spec, device=place.device, threads=place.threads))
    engine.refuse_unusable_arguments()
    if place.device and not engine.identity().devices:
        raise BadInput(
            source=f"--devices {place.device}",
            reason=f"{engine.name} sees no accelerator to choose here",
            hint="Use --workers N to measure several cells at once on the CPU.",
        )
    return Worker(engine=engine, device=place.phrase(engine))


def plan_for_new_folder(plan: Plan) -> Plan:
    """
    *plan* for a folder that was set aside: nothing goes on with what that asked.

    Raises:
        RequestError: See `plan`.
    """
    chosen = {probe.name: plan.kept.settings_of(probe) for probe in plan.probes}
    request = structs.replace(plan.request, **chosen)
    request = _adapt_settings(request, plan.probes, replace(plan.estimates, setup=None))
    return replace(plan, request=request)


def _adapt_settings(
    request: Request, probes: Sequence[Probe], estimates: Estimates
) -> Request:
    """*request* with the settings of *probes* as they suit all that is known."""
    changes = {
        probe.name: adapted
        for probe in probes
        for chosen in [request.settings_of(probe)]
        if (adapted := probe.adapt(chosen, estimates)) != chosen
    }
    return structs.replace(request, **changes)


def _request_to_keep(
    page: Request, request: Request, context: int, form: PromptForm
) -> Request:
    """
    The request that the run folder keeps: with all that was chosen, and absolute paths.

    Args:
        page: As the user wrote it.
        request: As it suits the engine.
        context: In tokens.
        form: Form of the prompts.
    """
    corpus = chosen_or_default_corpus(request)
    built_in = () if request.models else (pretrained.BUILT_IN,)
    return structs.replace(
        page,
        corpus=corpus if registry.is_known_name(corpus) else _absolute_path(corpus),
        models=tuple(map(_name_or_absolute_path, page.models)) or built_in,
        types=request.types,
        probes=request.probes,
        contexts=(context,),
        prompt_form=form,
    )


def _name_or_absolute_path(word: str) -> str:
    """*word*, absolute if it is a path: a server may know it as a name."""
    is_name = word in pretrained.NAMES or not exists(expand_home(word))
    return word if is_name else _absolute_path(word)


def _absolute_path(path: str) -> str:
    """*path* as an absolute one, the home folder written out; links stay."""
    return str(expand_home(path).absolute())


def _cell_price_of_each_probe(
    request: Request, probes: Sequence[Probe], estimates: Estimates
) -> list[Price]:
    """What a cell takes, of each of *probes* that says it; without what is refused."""
    # What it refuses is of the context that is chosen.
    adapted = _adapt_settings(request, probes, replace(estimates, unread=""))
    bills = (probe.bill(adapted.settings_of(probe), estimates) for probe in probes)
    return [bill.price for bill in bills if bill]
