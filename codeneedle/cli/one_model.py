"""
Decides whether files of weights are swept under one budget or each by itself; finds
another file of the same model beside one, to compare losses with.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs
from rich.console import Console

from codeneedle.cache_types import ENGINE
from codeneedle.cli.progress import print_notes
from codeneedle.errors import BadInput, CodeneedleError
from codeneedle.models.weights import (
    Weights,
    load_or_compute_sha256,
    read_weights_from_headers,
)
from codeneedle.records.store import SWEEP
from codeneedle.report.captions import root_options
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.prepare import facts_of_model
from codeneedle.sweep.request import Request
from codeneedle.text import escape_invisible, sweep_command
from codeneedle.verdict.joint import why_not_one_model
from codeneedle.verdict.next import PROBE


def restrict_to_deciding_probe(request: Request) -> Request:
    """
    *request*, which decides; among several files of weights, by recall alone.

    What compares a file with itself does not stand on the scale of another one.
    """
    if len({*request.models}) < 2:  # noqa: PLR2004 - several
        return request
    return structs.replace(request, probes=(PROBE.name,))


def can_share_budget_or_report(plans: Sequence[Plan], console: Console) -> bool:
    """
    Whether *plans* are of several files of weights that stand on one scale.

    If not, *console* shows why; each is swept by itself.

    Raises:
        BadInput: If two of them are the same file.
    """
    if len(plans) < 2:  # noqa: PLR2004 - several
        return False
    first, *others = plans
    refuse_same_file(plans)
    for other in others:
        if reason := why_not_one_budget(first, other):
            print_notes(console, [f"each by itself, not one budget: {reason}"])
            return False
    return True


def refuse_same_file(plans: Sequence[Plan]) -> None:
    """
    Stop at two *plans* whose weights have two names, but the same contents.

    Raises:
        BadInput: If there are.
    """
    by_hash: dict[str, Plan] = {}
    for plan in plans:
        same = by_hash.setdefault(load_or_compute_sha256(plan.weights), plan)
        if same is not plan and same.model != plan.model:
            raise BadInput(
                source=f"--model {plan.weights.path}",
                reason=f"is the same file as {same.weights.path}",
                hint="Name each file of weights once.",
            )


def why_not_one_budget(first: Plan, other: Plan) -> str:
    """Why two plans are not one question, as a phrase; empty if they may be."""
    asked, told = (_request_without_models(plan) for plan in (first, other))
    if asked != told:
        return "they differ by more than their weights"
    both = f"{escape_invisible(first.model)} and {escape_invisible(other.model)}"
    reason = _why_not_one_model(first.weights, other.weights)
    return f"{both} {reason}" if reason else ""


def _why_not_one_model(ours: Weights, theirs: Weights) -> str:
    """Why both are not known to be of one model; empty if they are."""
    if not (ours.tokenizer and theirs.tokenizer):
        return "do not both say what their tokenizer is"
    architectures = (ours.architecture, theirs.architecture)
    return why_not_one_model(
        facts_of_model(ours), facts_of_model(theirs), architectures
    )


def _request_without_models(plan: Plan) -> Request:
    return structs.replace(plan.request, models=())


MOST_BESIDE = 50
"""Files of a folder whose headers are read."""


def find_sibling_weights(weights: Weights) -> Path | None:
    """
    Another file of the same model in the folder of *weights*; None without one.

    The first by name of `MOST_BESIDE` that are looked at.
    """
    own = {path.name for path in weights.files}
    if not weights.tokenizer or weights.folder:
        return None
    beside = sorted(weights.path.parent.glob("*.gguf"))[:MOST_BESIDE]
    for path in beside:
        if path.name in own:
            continue
        with contextlib.suppress(CodeneedleError):
            other = read_weights_from_headers(path)
            if not _why_not_one_model(weights, other):
                return other.path
    return None


def weights_comparison_hint_line(plan: Plan) -> str:
    """
    What would tell how large the loss of a cache is beside that of weights.

    Empty without another file of the model in its folder.
    """
    other = find_sibling_weights(plan.weights)
    if other is None or plan.request.engine != ENGINE:
        return ""
    models = [*("--model", str(plan.weights.path)), *("--model", str(other))]
    folder = plan.store.folder
    where = root_options(folder.parents[1])
    # All else that was asked for stands in its sweep file.
    command = sweep_command(folder / SWEEP, "--decide", *models, *where)
    return (
        f"{escape_invisible(other.name)} lies beside it: how large this loss is "
        f"beside that of weights, tells {command} --max-memory SIZE --at TOKENS"
    )
