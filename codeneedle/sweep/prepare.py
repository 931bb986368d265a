"""
From a plan to a run: the text counted and fitted, chats rendered, what probes ask
chosen, the setup stored; what becomes of a run folder that has another setup.
"""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from codeneedle.corpora.corpus import Corpus
from codeneedle.corpora.fitting import (
    Fit,
    Room,
    corpus_facts,
    cut_to_text,
    fit_corpus_to_context,
)
from codeneedle.engines.engine import Engine, LostText, Tokenizer
from codeneedle.errors import BadInput
from codeneedle.models import weights
from codeneedle.probes import PROBES, refuse_impossible_settings, room_measuring_probe
from codeneedle.probes.cell import Preparation, RunContext, tokenizing
from codeneedle.probes.probe import Probe
from codeneedle.probes.prompts import PromptForm, Prompts, find_chat_frame
from codeneedle.records.comparability import OtherSetup, refuse_other_probe_settings
from codeneedle.records.record import (
    CorpusFacts,
    Frame,
    ModelFacts,
    Setup,
    WeightsFacts,
    as_json,
)
from codeneedle.records.store import SETTLED
from codeneedle.sweep.plan import Plan, plan_for_new_folder
from codeneedle.sweep.request import (
    merge_into_sweep_file,
    option_words,
    with_or_without_option_phrase,
)
from codeneedle.system import machine
from codeneedle.system.files import temporary_private_folder
from codeneedle.system.inherited_variables import setup_variables
from codeneedle.text import escape_invisible, plural, sweep_command


@dataclass(frozen=True, slots=True)
class _SentCorpus:
    """A corpus as it is sent."""

    facts: CorpusFacts  # what is stored of it
    text: str  # empty if no probe reads it


@dataclass(slots=True)
class _Counting:
    """Counts prompts of a plan by one tokenizer, which is started if it is needed."""

    plan: Plan
    stack: contextlib.ExitStack
    _prompts: Prompts | None = field(default=None, init=False)

    def ensure_prompt_counter(self) -> Prompts:
        """
        What counts prompts.

        Raises:
            CodeneedleError: If the tokenizer cannot be started.
        """
        if self._prompts is None:
            opened = tokenizing(self.plan.engine, self.plan.store.folder)
            self._prompts = _prompts_of_plan(
                self.plan, self.stack.enter_context(opened)
            )
        return self._prompts


def prepare_run_and_store_setup(plan: Plan) -> RunContext:
    """
    Fit the corpus to the context, have probes choose what they ask, store the setup.

    Where no probe reads the corpus, it is taken as it is. Counts come from the setup of
    the run folder if it has one, so that a resumed sweep starts no server to count. A
    folder of another setup without any number is set aside.

    Args:
        plan: One page of a sweep; its store is locked.

    Raises:
        OtherSetup: If the run folder is one of another setup.
        BadInput: If the corpus is too long and must not be trimmed, the chat template
            drops it, or the engine does not take the user's arguments.
        CodeneedleError: If counting fails, or a probe finds that it cannot run.
    """
    try:
        return _prepare_in_present_folder(plan)
    except OtherSetup:
        if not _has_no_numbers(plan):
            raise
        plan.store.set_run_aside()
        return _prepare_in_present_folder(plan_for_new_folder(plan))


def _prepare_in_present_folder(plan: Plan) -> RunContext:
    """Do `prepare_run_and_store_setup` for a folder that is not set aside."""
    with contextlib.ExitStack() as stack:
        run, stored = _checked_run_and_stored_setup(plan, _Counting(plan, stack))
    setup = plan.store.merge_and_store_setup(stored, run.setup)
    notes = [*_restore_calibrations_or_set_aside(plan, setup)]
    merge_into_sweep_file(plan.kept, plan.store)
    setup = replace(
        setup, calibrated=plan.store.read_calibrations() or setup.calibrated
    )
    notes = [*run.notes, *notes]
    return replace(run, setup=setup, preparation=None, notes=tuple(notes))


def _restore_calibrations_or_set_aside(plan: Plan, setup: Setup) -> Iterator[str]:
    """
    Restore what references have set and the folder has lost, by what records tell.

    Records of a probe that tell nothing of it depend on what is unknown: they are moved
    aside. Notes for the user say so.
    """
    finished = [r for r in plan.store.read_records() if r.has_numbers and not r.variant]
    for probe in plan.probes:
        records = [r for r in finished if r.probe == probe.name]
        if probe.name in setup.calibrated or not (probe.calibrating and records):
            continue
        if facts := probe.calibrating.recover_calibration(records):
            plan.store.store_calibration(probe.name, facts)
            continue
        plan.store.set_probe_aside(probe.name)
        yield (
            f"{probe.name}: what its reference has set for all pairs is lost "
            f"({plan.store.folder / SETTLED}): {plural(len(records), 'cell')} moved "
            "aside, as *.uncalibrated, and measured anew"
        )


def _checked_run_and_stored_setup(
    plan: Plan, counting: _Counting | None = None
) -> tuple[RunContext, Setup | None]:
    """
    The run of *plan*, with its setup, and the setup that its run folder has.

    Each fact is compared once, as soon as it is known. Without *counting* it is a
    folder that has a setup, whose counts are taken; probes that it has not are left
    out.

    Raises:
        OtherSetup: If the run folder is one of another setup.
    """
    stored = plan.store.read_setup()
    sent = _fit_or_reuse_sent_corpus(plan, stored, counting)
    preparation = (
        _make_preparation(plan, sent, counting.ensure_prompt_counter)
        if counting
        else None
    )
    setup = _make_setup(plan, sent)
    if preparation:
        frames = _render_or_reuse_chat_frames(plan, stored, preparation)
        setup = replace(setup, frames=frames)
    with _adding_hints_to_other_setup(plan):
        stored = plan.store.check_against_stored_setup(setup)
        run = replace(_run_context(plan, setup, sent, stored), preparation=preparation)
        probes = [
            probe
            for probe in plan.probes
            if counting or probe.name in run.setup.probes
            if counting or sent.text or not plan.reads_corpus
        ]
        layouts = {
            probe.name: probe.as_stored(plan.request.settings_of(probe), run)
            for probe in probes
        }
        setup = replace(setup, probes=layouts)
        if stored:
            refuse_other_probe_settings(stored, setup, folder=plan.store.folder)
            setup = replace(setup, calibrated=stored.calibrated, order=stored.order)
    notes = tuple(preparation.notes) if preparation else ()
    return replace(run, setup=setup, notes=notes), stored


UNKNOWN_PROMPT = (
    "the server renders chats itself: what its template adds, such as the date of the "
    "day, is not known, and may differ from cell to cell"
)
CHANGED_TEXTS = (
    "the chat template changes the texts of messages: each server renders them anew, "
    "and a date that it names changes from one day to the next"
)


def _render_or_reuse_chat_frames(
    plan: Plan, stored: Setup | None, preparation: Preparation
) -> dict[str, Frame]:
    """
    What the chat template makes of the chats of *plan*, rendered now or before.

    Those of the *stored* setup stay: a sweep that goes on asks what it began with. Adds
    to notes what is not known of a prompt.
    """
    notes = preparation.notes
    frames = dict(stored.frames) if stored else {}
    wanted = {roles for probe in plan.probes for roles in probe.chats}
    if plan.prompt_form is not PromptForm.CHAT or not wanted:
        return frames
    if not plan.engine.renders_chats:
        notes.append(UNKNOWN_PROMPT)
        return frames
    for roles in sorted(wanted - frames.keys()):
        frame = find_chat_frame(preparation.prompts().tokenizer, roles)
        if frame:
            frames[roles] = frame
        elif CHANGED_TEXTS not in notes:
            notes.append(CHANGED_TEXTS)
    return frames


def _make_preparation(
    plan: Plan, sent: _SentCorpus, prompts: Callable[[], Prompts]
) -> Preparation:
    """What probes choose of: the text as it is *sent*, all of it, and what counts."""
    return Preparation(
        corpus=cut_to_text(plan.corpus, sent.text),
        whole=plan.corpus,
        trained=plan.estimates.trained_context_limit,
        prompts=prompts,
        notes=[],
    )


def _has_no_numbers(plan: Plan) -> bool:
    """Whether the run folder has no number of any cell."""
    return not plan.store.has_numbers()


def _run_context(
    plan: Plan, setup: Setup, sent: _SentCorpus, stored: Setup | None
) -> RunContext:
    """What is the same for every cell; what a *stored* setup has settled goes first."""
    return RunContext(
        engine=plan.engine,
        weights=plan.weights,
        is_built_in=plan.is_built_in,
        setup=replace(
            setup,
            probes=stored.probes,
            calibrated=stored.calibrated,
            order=stored.order,
        )
        if stored
        else setup,
        text=sent.text,
        settings=plan.request.settings,
        folder=plan.store.folder,
        prefill_no_think=plan.request.prefill_no_think,
        survey=plan.survey,
    )


@contextlib.contextmanager
def _adding_hints_to_other_setup(plan: Plan) -> Iterator[None]:
    """
    Add a hint to `OtherSetup`: the option with which the run goes on, and the command
    of a run of its own with the one that was given.
    """
    try:
        yield
    except OtherSetup as error:
        name, _, setting = error.key.partition(" ")
        kinds = {p.name: p.settings for p in plan.probes if _has_settings_as_layout(p)}
        if name in kinds and setting in kinds[name].__struct_fields__:
            error.hint = _hint_of_settings(plan, name, setting, error)
        elif error.key == "context":
            go_on = sweep_command(plan.store.folder)
            new = _new_run_hint_ending(plan, "--context", str(plan.context))
            error.hint = f"Go on with the context of that run: {go_on}{new}"
        raise


def _hint_of_settings(plan: Plan, name: str, setting: str, error: OtherSetup) -> str:
    """What to do where a *setting* of the probe *name* is another one."""
    kind, setup = PROBES[name].settings, plan.store.read_setup()
    stored = setup.probes.get(name, {}) if setup else {setting: error.stored}
    chosen = as_json(plan.kept.settings_of(PROBES[name]))
    given = {
        key: value
        for key, value in chosen.items()
        if value not in (None, []) and value != stored.get(key)
    }
    if setting not in given and given:
        # It follows from what was given: chunks from contexts.
        setting = next(iter(given))
    words = [
        word for key in given for word in option_words(kind, key, given[key])
    ] or option_words(kind, setting, error.wanted)
    go_on = with_or_without_option_phrase(kind, setting, stored.get(setting))
    return f"Go on {go_on}{_new_run_hint_ending(plan, *words)}"


def _new_run_hint_ending(plan: Plan, *words: str) -> str:
    """The end of a hint: the command of a run with these *words*, shown beside."""
    folder, what = plan.store.folder, words[0].strip("-")
    out = folder.parents[1].with_name(f"{folder.parents[1].name}-{what}")
    command = sweep_command(folder, *words, "--out", str(out))
    both = escape_invisible(shlex.join(["codeneedle", "grid", str(folder), str(out)]))
    return f". Or make a run of its own: {command}. Both: {both}"


def _has_settings_as_layout(probe: Probe) -> bool:
    """Whether what a setup stores of *probe* are its settings, or some of them."""
    layout = probe.layout
    return layout is not None and (
        issubclass(layout, probe.settings) or issubclass(probe.settings, layout)
    )


def refuse_or_void_unfit_folder(plan: Plan) -> None:
    """
    Stop at a run folder that `prepare_run_and_store_setup` would refuse, as far as that
    needs no server.

    A folder of another setup without any number counts as new from now on.

    Raises:
        OtherSetup: If its records were made under another setup.
        BadSetup: If its probes have impossible settings.
    """
    if (stored := plan.store.read_intact_setup()) is None:
        return
    try:
        refuse_impossible_settings(stored)
        _checked_run_and_stored_setup(plan)
    except OtherSetup:
        if not _has_no_numbers(plan):
            raise
        plan.store.is_void = True


def count_and_refuse_long_corpus(plan: Plan) -> None:
    """
    Stop at a corpus that must not be trimmed and is longer than the context.

    An estimate would refuse some that fit: the tokenizer counts, once for a run folder.

    Raises:
        BadInput: With the context that it takes.
        CodeneedleError: If counting fails.
    """
    is_counted = plan.store.read_intact_setup() is not None
    if plan.request.fit or not plan.reads_corpus or is_counted:
        return
    with (
        temporary_private_folder() as folder,
        tokenizing(plan.engine, folder) as tokenizer,
    ):
        fit_corpus_to_context(_fit_of_plan(plan, _prompts_of_plan(plan, tokenizer)))


def refuse_shared_folders(plans: Sequence[Plan]) -> None:
    """
    Stop if two pages would write to one folder.

    Raises:
        BadInput: Naming the weights that are called alike.
    """
    seen: set[str] = set()
    for plan in plans:
        if plan.store.name in seen:
            raise BadInput(
                source=plan.weights.path,
                reason=f"two pages of this sweep would both write to {plan.store.name}",
                hint="Rename one of the two files of weights.",
            )
        seen.add(plan.store.name)


def thinking_off_phrase(plan: Plan) -> str:
    """How thinking is switched off, as a phrase for the setup."""
    if plan.prompt_form is PromptForm.COMPLETION:
        return "none: completion form"
    means = ["enable_thinking=false in the template's arguments"]
    if plan.engine.thinking_off_option:
        means.append(plan.engine.thinking_off_option)
    if plan.request.prefill_no_think:
        means.append("an empty thought prefilled")
    return ", ".join(means)


def hardware_phrase(engine: Engine) -> str:
    """Processor, memory, system and devices: what does not change from day to day."""
    identity = engine.identity()
    if identity.machine:
        return identity.machine
    devices = ", ".join(identity.devices)
    return f"{machine.facts().phrase()}{f'; {devices}' if devices else ''}"


def _fit_or_reuse_sent_corpus(
    plan: Plan, stored: Setup | None, counting: _Counting | None
) -> _SentCorpus:
    """
    The corpus as it is sent: counted before, as it is, or fitted to the context now.

    As it is where no probe reads it, or nothing counts.
    """
    reads = plan.reads_corpus
    if stored and (stored.corpus.is_counted or not reads or not counting):
        return _sent_corpus_of_setup(plan, stored)
    if not reads or not counting:
        return _SentCorpus(corpus_facts(plan.corpus, plan.corpus), text="")
    prompts = counting.ensure_prompt_counter()
    corpus, room = fit_corpus_to_context(_fit_of_plan(plan, prompts))
    tokens = prompts.tokenizer.count_tokens(corpus.text)
    _refuse_lost_text(prompts.tokenizer, corpus, room, tokens)
    return _SentCorpus(corpus_facts(corpus, plan.corpus, tokens=tokens), corpus.text)


def _sent_corpus_of_setup(plan: Plan, stored: Setup) -> _SentCorpus:
    """
    The corpus as it is sent by the counts of the *stored* setup, in place of new ones.

    If the text, the tokenizer or the prompts differ, so does another field of the
    setup, and the folder is refused for that. The origin of a text is no difference: it
    may be generated, or read from the file that it was written to.

    Raises:
        OtherSetup: If its corpus was trimmed, which is forbidden now.
    """
    if stored.corpus.is_trimmed and not plan.request.fit:
        raise OtherSetup(
            folder=plan.store.folder,
            key="corpus",
            stored="one that was trimmed to the context",
            wanted="all of it (--no-fit)",
        )
    facts = replace(
        stored.corpus,
        source_sha256=plan.corpus.sha256,
        sample_k=plan.corpus.sample_k,
        sample_seed=plan.corpus.sample_seed,
    )
    return _SentCorpus(facts, text=plan.corpus.text[: facts.characters])


def _prompts_of_plan(plan: Plan, tokenizer: Tokenizer) -> Prompts:
    return Prompts(tokenizer, plan.prompt_form, plan.request.prefill_no_think)


def _fit_of_plan(plan: Plan, prompts: Prompts) -> Fit:
    """
    The limits that the corpus of *plan* is fitted to.

    If the settings leave no room, those by default decide it.
    """
    probe = room_measuring_probe(plan.probes)
    chosen = plan.request.settings_of(probe)

    def rooms(corpus: Corpus) -> Iterator[Room]:
        if probe.rooms is None:
            return
        is_empty = True
        for room in probe.rooms(chosen, corpus, prompts):
            is_empty = False
            yield room
        if is_empty and corpus is plan.corpus:
            # Of a probe that is not measured, what was chosen may be anything.
            yield from probe.rooms(probe.settings(), corpus, prompts)

    return Fit(
        corpus=plan.corpus,
        context=plan.context,
        trained=plan.estimates.trained_context_limit,
        may_trim=plan.request.fit,
        rooms=rooms,
    )


def _refuse_lost_text(
    tokenizer: Tokenizer, corpus: Corpus, room: Room, tokens: int
) -> None:
    """
    Stop at a chat template that does not render the text: no model could recall it.

    Args:
        tokenizer: Counts prompts.
        corpus: The text as it is sent.
        room: What it leaves room for.
        tokens: Its length.

    Raises:
        BadInput: If a prompt is shorter than the text, or a function is not in it.
    """
    prompt = room.prompt(corpus.text)
    length = tokenizer.count_tokens(prompt)
    bodies = {function.name: "\n".join(function.body) for function in corpus.functions}
    missing = [name for name, body in bodies.items() if body not in prompt]
    if length < tokens:
        what = f"it has {length:,} tokens, the corpus alone has {tokens:,}"
    elif missing:
        what = f"the text of {missing[0]} is not in it"
    else:
        return
    raise LostText(f"the corpus: {what}")


def facts_of_model(header: weights.Weights) -> ModelFacts:
    """What *header* says of its model, as a setup stores it."""
    return ModelFacts(
        tokenizer=header.tokenizer,
        shape=header.shape_phrase,
        name=header.name,
        parameters=header.parameters,
    )


def _make_setup(plan: Plan, sent: _SentCorpus) -> Setup:
    """The setup of *plan*; hashing the weights may take a while."""
    identity = plan.engine.identity()
    return Setup(
        prompt_form=plan.prompt_form.value,
        thinking=thinking_off_phrase(plan),
        corpus=sent.facts,
        weights=WeightsFacts(
            name=plan.model,
            sha256=weights.load_or_compute_sha256(plan.weights),
            size_bytes=plan.weights.size_bytes,
        ),
        engine=plan.engine.name,
        lengths=identity.lengths,
        llama=identity.version,
        machine=hardware_phrase(plan.engine),
        cpu_features=identity.cpu_features,
        context=plan.context,
        server_args=(*identity.arguments, *plan.request.server_args),
        files=dict(plan.engine.hashes_by_file()),
        variables=setup_variables(),
        programs=dict(plan.engine.hashes_by_program()),
        refused=dict(plan.refused),
        rotation=plan.request.rotates,
        seed=plan.request.seed,
        types_k=plan.request.grid_k_types,
        types_v=plan.request.grid_v_types,
        pairs=tuple(map(str, plan.request.chosen_pairs)),
        architecture=plan.weights.architecture,
        quant=plan.weights.file_type,
        training_context=plan.weights.training_context,
        model=facts_of_model(plan.weights),
        created=machine.now(),
        python=machine.facts().python,
    )
