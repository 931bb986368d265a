"""
From a plan to a run: the corpus counted in tokens and fitted to the context, needles
chosen, the setup stored.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from codeneedle.engines.engine import Engine
from codeneedle.errors import BadInput
from codeneedle.models import weights
from codeneedle.probes import joined, refuse_impossible_settings
from codeneedle.probes.probe import Probe, RunContext, tokenizing
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.recall.fitting import (
    Fit,
    Fitted,
    PromptCounter,
    counted,
    counted_further,
    facts_of,
)
from codeneedle.probes.recall.prompts import PROMPT_VERSION
from codeneedle.probes.recall.record import NAME as RECALL
from codeneedle.probes.recall.settings import Ask, RecallSettings
from codeneedle.records.comparability import OtherSetup, widened
from codeneedle.records.record import Setup, WeightsFacts
from codeneedle.sweep.plan import Plan, afresh
from codeneedle.sweep.request import Request, keep, option_of
from codeneedle.system import machine
from codeneedle.system.files import private_folder


def prepare(plan: Plan) -> RunContext:
    """
    Fit the corpus to the context, choose needles, and store the setup.

    Where no probe reads the corpus, it is taken as it is, and there are no needles.
    Counts come from the setup of the run folder if it has one, so that a resumed sweep
    starts no server to count. A folder of another setup without any number is set
    aside.

    Args:
        plan: One page of a sweep; its store is locked.

    Raises:
        OtherSetup: If the run folder is one of another setup.
        BadInput: If the corpus is too long and must not be trimmed, the chat template
            drops it, or the engine does not take the user's arguments.
        CodeneedleError: If counting fails, or a probe finds that it cannot run.
    """
    try:
        return _prepared(plan)
    except OtherSetup:
        if not _has_no_numbers(plan):
            raise
        plan.store.set_aside()
        return _prepared(afresh(plan))


def _prepared(plan: Plan) -> RunContext:
    run, wanted, setup = _compared(plan, _fitted(plan), plan.probes)
    for probe in plan.probes:
        # These records depend on a calibration that was lost with its setup.
        if probe.calibrates and probe.name not in run.setup.probes:
            plan.store.set_probe_aside(probe.name)
    with _hinting(plan):
        setup = plan.store.adopt(setup)
    keep(_with_grown(plan, wanted, setup), plan.store)
    return replace(run, setup=setup)


def _compared(
    plan: Plan, fitted: Fitted, probes: Iterable[Probe]
) -> tuple[RunContext, Setup, Setup]:
    """
    The run of *plan* in its folder, what *plan* asks, and what both ask.

    Raises:
        OtherSetup: If the run folder is one of another setup, but for its probes.
    """
    setup = _setup(plan, fitted)
    with _hinting(plan):
        stored = plan.store.compare(setup)
    run = _run(plan, setup, fitted, stored)
    wanted = replace(
        setup, probes={probe.name: probe.as_stored(run) for probe in probes}
    )
    return run, wanted, joined(stored, wanted, plan.probes)


def _has_no_numbers(plan: Plan) -> bool:
    """
    Whether the run folder has no number that another setup could be mixed with.

    Never where a share is measured: other sweeps may be about to add some.
    """
    return plan.execution.shard is None and not plan.store.has_numbers()


def _run(
    plan: Plan, setup: Setup, fitted: Fitted, stored: Setup | None = None
) -> RunContext:
    return RunContext(
        engine=plan.engine,
        weights=plan.weights,
        is_built_in=plan.is_built_in,
        setup=replace(setup, probes=stored.probes, calibrated=stored.calibrated)
        if stored
        else setup,
        text=fitted.text,
        settings=plan.request.settings,
        folder=plan.store.folder,
        prefill_no_think=plan.request.prefill_no_think,
        notes=fitted.notes,
        survey=plan.survey,
        workers=len(plan.workers),
        may_grow=plan.may_grow,
    )


def _with_grown(plan: Plan, wanted: Setup, setup: Setup) -> Request:
    """The request that the run folder of *plan* keeps, with what *setup* asks more."""
    changes = {}
    for probe in plan.probes:
        asked = setup.probes[probe.name]
        if probe.growth and wanted.probes[probe.name] != asked:
            grown = probe.growth.choice(probe.settings, asked)
            chosen = plan.kept.settings_of(probe)
            changes[probe.name] = structs.replace(chosen, **grown)
    return structs.replace(plan.kept, **changes)


@contextlib.contextmanager
def _hinting(plan: Plan) -> Iterator[None]:
    """
    Add a hint to `OtherSetup`: what can be added to the run folder, or the option with
    which it goes on.
    """
    growing = [
        option_of(probe.settings, name)
        for probe in plan.probes
        for name in (probe.growth.names if probe.growth else ())
        if name in probe.settings.__struct_fields__
    ]
    try:
        yield
    except OtherSetup as error:
        name, _, setting = error.key.partition(" ")
        kinds = {p.name: p.settings for p in plan.probes if p.asks_functions}
        if name in kinds and setting in kinds[name].__struct_fields__:
            option = option_of(kinds[name], setting)
            value = error.stored.strip("'")
            way = f"without {option}" if value == "None" else f"with {option} {value}"
            error.hint = f"Go on {way}, or choose another folder with --out."
        elif growing:
            error.hint += f" What can be added is: --types, {', '.join(growing)}."
        raise


def refuse_unfit(plan: Plan) -> Setup | None:
    """
    Stop at what would end the sweep, as far as that needs no server.

    That is a run folder of another setup, and a trimmed corpus where none may be
    trimmed. A folder of another setup without any number counts as new from now on.

    Returns:
        The setup that the run folder will have; None of a new one.

    Raises:
        OtherSetup: If its records were made under another setup.
        BadSetup: If its setup cannot be read, and not be restored from its records; or
            if its probes have impossible settings.
    """
    try:
        if stored := plan.store.intact_setup():
            refuse_impossible_settings(stored)
            return _refuse_unlike(plan, stored)
    except OtherSetup:
        if not _has_no_numbers(plan):
            raise
        plan.store.is_void = True
    return None


def refuse_untrimmed(plan: Plan) -> None:
    """
    Stop at a corpus that must not be trimmed and is longer than the context.

    An estimate would refuse some that fit: the tokenizer counts, once for a run folder.

    Raises:
        BadInput: With the context that it takes.
        CodeneedleError: If counting fails.
    """
    is_counted = plan.store.intact_setup() is not None
    if plan.request.fit or not plan.reads_corpus or is_counted:
        return
    with private_folder() as folder, tokenizing(plan.engine, folder) as tokenizer:
        counted(PromptCounter(tokenizer, _fit(plan)))


def _refuse_unlike(plan: Plan, stored: Setup) -> Setup:
    fitted = _stored(plan, stored)
    probes = [
        probe
        for probe in plan.probes
        if probe.name in stored.probes
        if fitted.text or not plan.reads_corpus
    ]
    _, _, setup = _compared(plan, fitted, probes)
    with _hinting(plan):
        plan.store.compare(setup)
    return widened(stored, setup)


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


def thinking_phrase(plan: Plan) -> str:
    """How thinking is switched off, as a phrase for the setup."""
    if plan.prompt_form is PromptForm.COMPLETION:
        return "none: completion form"
    means = ["enable_thinking=false in the template's arguments"]
    if plan.engine.thinking_off:
        means.append(plan.engine.thinking_off)
    if plan.request.prefill_no_think:
        means.append("an empty thought prefilled")
    return ", ".join(means)


def machine_phrase(engine: Engine) -> str:
    """Processor, memory, system and devices: what does not change from day to day."""
    identity = engine.identity()
    if identity.machine:
        return identity.machine
    devices = ", ".join(identity.devices)
    return f"{machine.facts().phrase()}{f'; {devices}' if devices else ''}"


def _fitted(plan: Plan) -> Fitted:
    stored, reads = plan.store.setup(), plan.reads_corpus
    if stored is not None and (stored.corpus.is_counted or not reads):
        known = _stored(plan, stored)
        if stored.needles or stored.forced or not _asks_functions(plan):
            return known
        with tokenizing(plan.engine, plan.store.folder) as tokenizer:
            return counted_further(PromptCounter(tokenizer, _fit(plan)), known)
    if not reads:
        return Fitted(facts=facts_of(plan.corpus, plan.corpus), text="")
    with tokenizing(plan.engine, plan.store.folder) as tokenizer:
        return counted(PromptCounter(tokenizer, _fit(plan)))


def _stored(plan: Plan, stored: Setup) -> Fitted:
    """
    The counts of the *stored* setup, in place of new ones.

    If the text, the tokenizer or the prompts differ, so does another field of the
    setup, and the folder is refused for that. The origin of a text is no difference: it
    may be generated, or read from the file that it was written to.

    Raises:
        OtherSetup: If its corpus was trimmed, which is forbidden now.
        BadInput: If recall is to have functions written, and another probe has chosen
            functions to force alone.
    """
    if stored.corpus.is_trimmed and not plan.request.fit:
        raise OtherSetup(
            folder=plan.store.folder,
            key="corpus",
            stored="one that was trimmed to the context",
            wanted="all of it (--no-fit)",
        )
    ask = _function_settings(plan).ask
    is_begun = stored.forced and not stored.needles and RECALL not in stored.probes
    if is_begun and _asks_functions(plan) and ask and Ask.WRITTEN in ask.parts:
        raise BadInput(
            source=f"--ask {ask}",
            reason=f"{plan.store.folder} was begun without functions to write",
            hint="Use --ask forced, or another folder with --out.",
        )
    facts = replace(
        stored.corpus,
        source_sha256=plan.corpus.sha256,
        sample_k=plan.corpus.sample_k,
        sample_seed=plan.corpus.sample_seed,
    )
    text = plan.corpus.text[: facts.characters]
    return Fitted(facts=facts, text=text, needles=stored.needles, forced=stored.forced)


def _asks_functions(plan: Plan) -> bool:
    return any(probe.asks_functions for probe in plan.probes)


def _function_settings(plan: Plan) -> RecallSettings:
    """
    The settings by which functions are chosen: to force alone for other probes.

    Where no probe needs functions, those of recall leave room for it later.
    """
    chosen = plan.request.chosen(RECALL, RecallSettings)
    if RECALL in {probe.name for probe in plan.probes} or not _asks_functions(plan):
        return chosen
    return structs.replace(chosen, ask=Ask.FORCED)


def _fit(plan: Plan) -> Fit:
    """The limits that the corpus of *plan* is fitted to."""
    trained = plan.weights.training_context
    return Fit(
        corpus=plan.corpus,
        context=plan.context,
        trained=None if plan.engine.stretches_context else trained or None,
        form=plan.prompt_form,
        prefill_no_think=plan.request.prefill_no_think,
        may_trim=plan.request.fit,
        settings=_function_settings(plan),
        asks_functions=_asks_functions(plan),
        folder=plan.store.folder,
    )


def _setup(plan: Plan, fitted: Fitted) -> Setup:
    """The setup of *plan*; hashing the weights may take a while."""
    identity = plan.engine.identity()
    return Setup(
        prompt_version=PROMPT_VERSION,
        prompt_form=plan.prompt_form.value,
        thinking=thinking_phrase(plan),
        corpus=fitted.facts,
        needles=fitted.needles,
        forced=fitted.forced,
        weights=WeightsFacts(
            name=plan.model,
            sha256=weights.sha256(plan.weights),
            size_bytes=plan.weights.size_bytes,
        ),
        engine=plan.engine.name,
        lengths=identity.lengths,
        llama=identity.version,
        machine=machine_phrase(plan.engine),
        cpu_features=identity.cpu_features,
        context=plan.context,
        server_args=(*identity.arguments, *plan.request.server_args),
        rotation=plan.request.rotates,
        seed=plan.request.seed,
        types_k=plan.request.rows,
        types_v=plan.request.columns,
        pairs=tuple(map(str, plan.request.chosen_pairs)),
        architecture=plan.weights.architecture,
        quant=plan.weights.file_type,
        created=machine.now(),
        python=machine.facts().python,
    )
