"""How each metric is shown: its label, decimals, scale, and where reports have it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from codeneedle.corpora.needles import WRITTEN_LINES
from codeneedle.probes.metrics import Metric, parse_facet
from codeneedle.probes.recall.metrics import PASS_LINES
from codeneedle.probes.retrieval.scoring import Mode
from codeneedle.probes.retrieval.task_kinds import TASKS
from codeneedle.probes.reuse.metrics import PHRASES
from codeneedle.probes.reuse.record import CacheState

GROUPS = ("quality", "speed", "memory")
"""The order of columns, by the quantity of their metrics."""

SPEEDS = {"tg": "writing", "pp": "prompt reading"}
"""The tests of throughput as phrases, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """How reports show a metric."""

    label: str  # heading: ``matched lines of 20``
    digits: int = 2  # decimals worth showing
    bounds: tuple[float | None, float | None] = (0, None)
    """Natural ends of its scale; None where there is none."""

    least_span: float = 0.0
    """
    Least width of a colour scale, in the unit of the values: a tenth of it is not worth
    a colour. 0 for a share of the values instead.
    """

    in_table: bool = False  # True if tables show it by default
    is_left_out_as_zero: bool = False
    """True if tables leave it out where it is 0 of all pairs."""

    is_kept: bool = False
    """True if comparisons and receipts have it although tables leave it out."""

    relative: bool = False  # True if tables show its ratio to the reference
    shows_error: bool = False  # True if reports show its standard error
    has_sign: bool = False  # True of a difference: one above 0 has a plus
    companions: tuple[str, ...] = ()
    """Metrics that reports show beside it, where they have values."""

    of_facet: str = ""
    """
    Label of a facet, with the parts of the facet in braces; empty for one whose facets
    have the label of the whole.
    """

    has_columns: bool = False
    """True if tables show its facets of one part by default: each task, no length."""


_DIGITS = {"%": 1, "nats": 3}
"""Decimals of metrics without an entry, by unit."""


def display_of(metric: Metric) -> Display:
    """
    How *metric* is shown; a facet as its whole, with a label of its own.

    A metric without an entry is shown by its name, with the decimals of its unit.
    """
    if metric.name in DISPLAYS:
        return DISPLAYS[metric.name]
    whole = DISPLAYS.get(metric.of)
    if whole is None:
        digits = _DIGITS.get(metric.unit, 2)
        return Display(label=metric.name, digits=digits, in_table=True)
    parts = parse_facet(metric.facet)
    return replace(
        whole,
        label=whole.of_facet.format(**_facet_part_phrases(parts)) or whole.label,
        in_table=whole.has_columns and len(parts) == 1,
    )


def _facet_part_phrases(parts: Mapping[str, str]) -> dict[str, str]:
    """The parts of a facet as labels have them: numbers, tasks and caches in words."""
    phrases = {**parts}
    if "depth" in parts:
        phrases["depth"] = f"{int(parts['depth']):,}"
    if "cache" in parts:
        phrases["cache"] = PHRASES[CacheState(parts["cache"])]
    if "task" in parts:
        task = parts["task"]
        phrases["task"] = TASKS[task].about if task in TASKS else task
    if "length" in parts:
        phrases["task"] += f", texts of {int(parts['length']):,} tokens"
    return phrases


_MEMORY = {
    "kv": Display(label="KV cache", digits=1, in_table=True, relative=True),
    "kv-k": Display(label="K cache", digits=1, relative=True),
    "kv-v": Display(label="V cache", digits=1, relative=True),
    "kv-per-1k": Display(label="KV cache per 1,000 tokens", relative=True),
    "compute": Display(label="compute buffers", digits=1),
    "state": Display(label="recurrent state", digits=1),
    "rss": Display(label="peak of the process", digits=1),
    "device": Display(label="held on devices", digits=1),
    "device-peak": Display(label="peak on devices", digits=1),
}

_TIME = {
    "ready": Display(label="from launch to a verified server", digits=1),
    "time": Display(label="the whole cell", digits=1),
    "waiting": Display(
        label="start and stop of the server, and the time since the last cell"
    ),
}

_LINES = Display(label="", least_span=5)
_ROUNDS = Display(label="", digits=0, bounds=(0, 1))
_GAP = Display(label="", least_span=1)

_WRITTEN = {
    "matched": replace(
        _LINES,
        label=f"matched lines of {WRITTEN_LINES}",
        bounds=(0, WRITTEN_LINES),
        in_table=True,
    ),
    "pass": replace(_ROUNDS, label=f"rounds with at least {PASS_LINES} matched lines"),
    "misplaced": replace(
        _LINES,
        label="lines of the answer that stand elsewhere in the text",
        in_table=True,
        is_left_out_as_zero=True,
    ),
    "hallucinated": replace(
        _LINES,
        label="lines of the answer that stand nowhere in the text",
        in_table=True,
        is_left_out_as_zero=True,
    ),
    "missing": replace(
        _LINES, label=f"missing lines of {WRITTEN_LINES}", bounds=(0, WRITTEN_LINES)
    ),
    "bonus": replace(_LINES, label="correct lines past the asked ones"),
    "overrun": replace(
        _LINES, label="lines past the end of the answer that match nothing"
    ),
    "matched-strict": replace(
        _LINES,
        label=f"matched lines of {WRITTEN_LINES}, leading white space included",
        bounds=(0, WRITTEN_LINES),
    ),
    "margin": replace(_GAP, label="smallest gap to the runner-up token", in_table=True),
    "margin5": replace(_GAP, label="gap to the runner-up token, 5th percentile"),
    "margin-mean": replace(_GAP, label="gap to the runner-up token, mean"),
    "prefill": Display(label="prompt reading, a by-product", digits=0),
    "decode": Display(label="writing, a by-product", digits=1, is_kept=True),
    "accepted": Display(
        label="drafted tokens that were right",
        digits=1,
        bounds=(0, 100),
        in_table=True,
    ),
    "errors": replace(_ROUNDS, label="rounds without an answer"),
}

_LOGP = Display(label="", bounds=(None, 0), least_span=0.2, digits=3, in_table=True)
_PERCENT = Display(label="", bounds=(0, 100), least_span=10)
_LEAD = Display(label="", bounds=(None, None), least_span=1, companions=("matched",))

_FORCED = {
    "recall-logp": replace(
        _LOGP, label="log-probability of the right tokens", companions=("matched",)
    ),
    "recall-right": replace(
        _PERCENT,
        label="right tokens that were the first choice",
        digits=1,
        in_table=True,
        companions=("matched",),
    ),
    "breaks-at": replace(
        _LINES,
        label="right lines before greedy writing would leave them",
        companions=("matched",),
    ),
    "lead": replace(_LEAD, label="lead of the right tokens over the runner-up, mean"),
    "lead5": replace(
        _LEAD, label="lead of the right tokens over the runner-up, 5th percentile"
    ),
}

_NATS = Display(label="", digits=4, least_span=0.1)

_OF_DIVERGENCE = {
    "kld": replace(_NATS, label="mean KL divergence from the reference", in_table=True),
    "kld999": replace(_NATS, label="KL divergence, 99.9th percentile", in_table=True),
    "precision": Display(label="exp(floor - kld)", least_span=10, in_table=True),
    "precision999": Display(label="exp(floor - kld999)", least_span=10, in_table=True),
    "top1": replace(
        _PERCENT,
        label="tokens with the reference's first choice",
        in_table=True,
        shows_error=True,
    ),
    "kld-median": replace(_NATS, label="KL divergence, median"),
    "kld-max": replace(_NATS, label="KL divergence, largest of all tokens"),
    "dp-rms": replace(
        _PERCENT,
        label="change of the right token's probability, RMS",
        digits=3,
        is_kept=True,
    ),
    "ppl": Display(
        label="perplexity",
        digits=4,
        bounds=(1, None),
        in_table=True,
        shows_error=True,
    ),
    "ppl-ratio": Display(label="perplexity by the reference's", digits=4),
}

_DIVERGENCE = {
    **{
        name: replace(
            display, of_facet=f"{display.label}, chunks of {{context}} tokens"
        )
        for name, display in _OF_DIVERGENCE.items()
    },
    "text-logp": replace(
        _LOGP,
        label="log-probability of the right tokens of ordinary text",
        of_facet="log-probability of the right tokens of {part}",
        has_columns=True,
    ),
}

_THROUGHPUT = {
    **{
        test: Display(
            label=f"{phrase} at the deepest depth",
            of_facet=f"{phrase} at depth {{depth}}",
            digits=1,
            in_table=True,
            relative=True,
            shows_error=True,
        )
        for test, phrase in SPEEDS.items()
    },
    "peak": Display(
        label="peak memory",
        of_facet="peak memory at depth {depth}",
        digits=0,
        has_columns=True,
        relative=True,
    ),
}

_RIGHT = Display(label="", bounds=(0, 1), least_span=0.1)
_RIGHT_ANSWER = "log-probability of the right answer per token"
_UNTIL = "tokens before greedy writing would be wrong"

_RETRIEVAL = {
    "retrieval": replace(
        _RIGHT,
        label="right answers, informative tasks",
        of_facet="right: {task}",
        in_table=True,
        has_columns=True,
    ),
    "retrieval-logp": replace(
        _LOGP,
        label=f"{_RIGHT_ANSWER}, informative tasks",
        of_facet=f"{_RIGHT_ANSWER}: {{task}}",
        has_columns=True,
    ),
    "retrieval-until": Display(
        label=_UNTIL, of_facet=f"{_UNTIL}: {{task}}", digits=1, least_span=10
    ),
    **{
        mode.value: replace(
            _RIGHT,
            label=f"answers of the mode {mode.value}, all tasks",
            digits=0,
            in_table=mode is Mode.INTRUSION,
        )
        for mode in Mode
        if mode not in {Mode.CORRECT, Mode.DEPARTS}
    },
    "reading": Display(label="reading of texts, a by-product", digits=0),
}

_CHANGE = "largest change of a right token's log-probability"

_REUSE = {
    "reuse": Display(
        label=f"{_CHANGE} in a cache used again",
        of_facet=f"{_CHANGE} {{cache}}",
        digits=4,
        has_columns=True,
    ),
    "reuse-replies": Display(
        label="replies that differ from those of a cold cache", digits=0, in_table=True
    ),
}

_TRANSCRIPT = {
    "transcript-logp": replace(
        _LOGP,
        label="log-probability of the assistant's tokens",
        of_facet="log-probability of {tokens} tokens",
        has_columns=True,
    ),
    "transcript-right": replace(
        _PERCENT,
        label="the assistant's tokens that were the first choice",
        of_facet="{tokens} tokens that were the first choice",
        digits=1,
        in_table=True,
    ),
    "transcript-breaks-at": Display(
        label="the assistant's tokens before greedy writing would leave a turn",
        of_facet="{tokens} tokens before greedy writing would leave a turn",
        digits=1,
        least_span=5,
    ),
}

_EVALUATION = {
    "eval": Display(
        label="mean score of the evaluation", digits=3, bounds=(0, 1), in_table=True
    ),
    "eval-lost": Display(
        label="samples with a lower score than the reference's",
        digits=0,
        in_table=True,
    ),
    "eval-won": Display(
        label="samples with a higher score than the reference's",
        digits=0,
        in_table=True,
    ),
}

_GENERATION = {
    "diverges-at": Display(
        label="tokens before an answer leaves the reference's, median",
        digits=0,
        in_table=True,
    ),
    "diverges-lead": Display(
        label="lead of the reference's token where an answer leaves it, median",
        in_table=True,
    ),
    "loops": replace(
        _PERCENT,
        label="answers in which one n-gram fills a stretch",
        digits=0,
        in_table=True,
    ),
    "generation-empty": replace(
        _PERCENT, label="answers in which nothing is written", digits=0, in_table=True
    ),
    "ends": replace(
        _PERCENT,
        label="answers that the model writes and ends itself",
        digits=0,
        in_table=True,
    ),
    "length": Display(
        label="tokens of an answer", digits=0, relative=True, in_table=True
    ),
    "generation-accepted": Display(
        label="drafted tokens that were right",
        digits=1,
        bounds=(0, 100),
        in_table=True,
    ),
}

DISPLAYS: dict[str, Display] = {
    **_MEMORY,
    **_TIME,
    **_WRITTEN,
    **_FORCED,
    **_DIVERGENCE,
    **_THROUGHPUT,
    **_RETRIEVAL,
    **_REUSE,
    **_TRANSCRIPT,
    **_EVALUATION,
    **_GENERATION,
}
"""How metrics are shown, by name; facets as the metric that they are of."""
