"""What a run was measured on, in words: no number is shown without it."""

from codeneedle.records import Json, Run, Setup
from codeneedle.report.safetext import visible
from codeneedle.units import plural, size

BUILT_IN_MODEL = "needle-nano"
"""Name of the weights that come with codeneedle."""

_SHORT_HASH = 8


def setup_line(setup: Setup) -> str:
    """The model and how it is asked, on one line."""
    return visible(
        f"{setup.weights.name} on {setup.corpus.name}: "
        f"context {plural(setup.context, 'token')}, "
        f"{plural(len(setup.needles), 'round')}, {setup.prompt_form} prompt"
    )


def corpus_line(setup: Setup) -> str:
    """The corpus as it was sent, on one line."""
    corpus = setup.corpus
    parts = [
        f"{corpus.name}: {corpus.origin}",
        corpus.kind,
        plural(corpus.tokens, "token"),
        fitting(setup),
    ]
    return visible("; ".join(parts))


def fitting(setup: Setup) -> str:
    """How much of the corpus was sent: ``trimmed to 16 of 200 functions``."""
    corpus = setup.corpus
    if corpus.is_trimmed:
        before = plural(corpus.functions_before, "function")
        return f"trimmed to {corpus.functions:,} of {before}"
    return plural(corpus.functions, "function")


def facts(run: Run) -> tuple[tuple[str, str], ...]:
    """All that a reader needs to judge a number: a word and a phrase for each."""
    setup = run.setup
    weights = f"{setup.weights.name}, {size(setup.weights.size_bytes)}, "
    asked = (
        f"{plural(setup.context, 'token')}, {plural(len(setup.needles), 'round')}, "
        f"{setup.prompt_form} prompt{'' if setup.rotation else ', rotation off'}"
    )
    lines = [
        ("model", f"{weights}sha256 {setup.weights.sha256[:_SHORT_HASH]}"),
        ("corpus", corpus_line(setup)),
        ("context", asked),
        *probe_settings(run),
        ("llama.cpp", " ".join([setup.llama, *setup.server_args])),
        ("machine", setup.machine),
        ("date", dates(run)),
    ]
    return tuple((word, visible(phrase)) for word, phrase in lines)


def probe_settings(run: Run) -> tuple[tuple[str, str], ...]:
    """What each probe that has records was told to do, where it was told anything."""
    seen = dict.fromkeys(record.probe for record in run.records)
    told = {name: _settings(run.setup.probes.get(name, {})) for name in seen}
    trial = run.setup.trial
    if trial and told.get("recall"):
        told["recall"] += f"; {trial.phrase}"
    return tuple(
        (visible(name), visible(phrase)) for name, phrase in told.items() if phrase
    )


def _settings(settings: Json) -> str:
    """Numbers and names; hashes, and what the facts tell anyway, are left out."""
    said = []
    for key, value in settings.items():
        values = value if isinstance(value, list) else [value]
        shown = [str(each) for each in values if isinstance(each, str | int)]
        if shown and "sha256" not in key and key != "llama":
            said.append(f"{key.replace('_', ' ')} {', '.join(shown)}")
    return "; ".join(said)


def dates(run: Run) -> str:
    """The day of its records, or the first and the last; else when it was made."""
    days = sorted({record.started[:10] for record in run.records})
    if not days:
        return run.setup.created[:10]
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def cautions(setup: Setup) -> tuple[str, ...]:
    """What a reader should not conclude, as sentences; most often none."""
    is_built_in = setup.weights.name == BUILT_IN_MODEL
    if not is_built_in or setup.corpus.kind == "incompressible":
        return ()
    instrument = "The built-in model is an instrument for incompressible text"
    return (f"{instrument}: what it does on {setup.corpus.name} tells nothing.",)
