"""
The commands that a verdict names: to decide an open pair, to run anew, and the options
of limits.
"""

import math
from collections.abc import Iterator

from codeneedle.models.kv_cache import pad_context
from codeneedle.probes.metrics import FUNCTIONS, UnitKind
from codeneedle.quantities import memory_size_text
from codeneedle.records.store import SWEEP
from codeneedle.text import duration_text, sweep_command
from codeneedle.verdict.judge import PairResult, Verdict
from codeneedle.verdict.limits import MAX_EVAL_LOST, MAX_LOSS, MAX_LOST
from codeneedle.verdict.next import FURTHER, pairs_to_extend, seconds_for_goals

_ELSEWHERE = ("--out", "longer")
"""Where a new run goes that asks for more than a run folder can take."""


def how_to_decide_phrases(
    verdict: Verdict, result: PairResult, needed: int, kind: UnitKind
) -> Iterator[str]:
    """Yield a phrase: the command that asks for further units, or what allows that."""
    setup = verdict.run.setup
    if kind.noun == "chunks":
        yield (
            "a new run: "
            f"{new_run_command(verdict, '--chunks', str(needed), *_ELSEWHERE)}"
        )
        return
    ends = FURTHER.units_at_looks(setup)
    if kind != FUNCTIONS or not ends:
        yield f"a new run with more {kind.more}."
        return
    goals = pairs_to_extend(verdict)
    if result.pair in goals:
        time = seconds_for_goals(verdict.run, goals)
        about = f" (about {duration_text(time)})" if math.isfinite(time) else ""
        options = limit_options(verdict)
        yield f"{sweep_command(verdict.run.folder, *options, '--more')}{about}"
        return
    functions = max(ends)
    whole = setup.corpus.functions_before
    context = pad_context(-(-setup.context * needed // functions))
    asked = ("--functions", str(needed), "--context", str(context))
    if setup.corpus.is_trimmed and functions < needed <= whole:
        command = new_run_command(verdict, *asked)
        yield f"the context holds {functions} functions; a new run: {command}"
    else:
        command = new_run_command(verdict, *asked, "--corpus", "FILE", *_ELSEWHERE)
        yield (
            "this text has no further functions; a new run on a longer one like it: "
            f"{command}"
        )


def new_run_command(verdict: Verdict, *options: str) -> str:
    """The command for another run like that of *verdict*, with other *options*."""
    return sweep_command(verdict.run.folder / SWEEP, *options)


def limit_options(verdict: Verdict) -> list[str]:
    """Options of the limits that a verdict holds losses against, if not the default."""
    options, limits = [], verdict.limits
    for flag, limit, default in (
        ("--max-loss", limits.max_loss, MAX_LOSS),
        ("--max-lost", limits.max_lost, MAX_LOST),
        ("--max-eval-lost", limits.max_eval_lost, MAX_EVAL_LOST),
    ):
        if limit != default:
            options += [flag, f"{100 * limit:.6g}%"]
    if limits.max_memory_bytes is not None:
        options += ["--max-memory", memory_size_text(limits.max_memory_bytes)]
    if limits.at is not None:
        options += ["--at", str(limits.at)]
    return options
