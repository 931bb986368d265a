"""The ask command: the user's own prompt, answered by the servers of some pairs."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from msgspec import structs
from rich.console import Console

from codeneedle.cache_types import Pair
from codeneedle.cli.progress import end_and_report_orphans, fetch_missing_models, say
from codeneedle.cli.sweep import make_plans
from codeneedle.engines.engine import CellSpec
from codeneedle.engines.messages import Chat, Completion, Message, Reply
from codeneedle.engines.mismatch import mismatch_error
from codeneedle.engines.started_servers import reporting_waits
from codeneedle.errors import BadInput, CellError
from codeneedle.models.pretrained import path_unless_built_in
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.thinking import NO_THINK_ARGS
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.request import Execution, Request
from codeneedle.sweep.runner import refuse_impossible_pair
from codeneedle.system.files import cache_folder, reason_of
from codeneedle.system.secrets import SHORTEST_IN_ANSWERS, mask_text
from codeneedle.system.signals import interrupting_on_end_signals

MOST_PROMPT_BYTES = 16 << 20
"""More than the text of any context."""


def ask_fresh_servers(
    pairs: Sequence[Pair],
    prompt: str,
    request: Request,
    execution: Execution,
    notes: Console,
    *,
    tokens: int,
) -> list[tuple[Pair, Reply | str]]:
    """
    The greedy answers of *pairs* to *prompt*.

    Nothing is stored: the log of a server goes when it has answered. A pair that fails
    has the reason in place of an answer, and costs no other.

    Args:
        pairs: Cache types; the first is what others are compared with.
        prompt: A chat's message; text to continue for weights without a template.
        request: Model, engine and context.
        execution: Which binary.
        notes: Where to show progress.
        tokens: Most tokens of an answer.

    Raises:
        CodeneedleError: If no server can be started for any of them.
    """
    request = structs.replace(request, pairs=tuple(map(str, pairs)), probes=())
    fetch_missing_models(notes, map(path_unless_built_in, request.models))
    (plan,) = make_plans(request, execution)
    answers: list[tuple[Pair, Reply | str]] = []
    with interrupting_on_end_signals(), reporting_waits(partial(say, notes)):
        end_and_report_orphans(notes)
        for pair in pairs:
            say(notes, f"asking {pair}")
            try:
                answers.append((pair, _ask_fresh_server(plan, pair, prompt, tokens)))
            except CellError as error:
                answers.append((pair, mask_text(f"{error.status}: {error}")))
    return answers


def _ask_fresh_server(plan: Plan, pair: Pair, prompt: str, tokens: int) -> Reply:
    """
    The greedy answer of *pair* to *prompt*, without what may be secret.

    Its log stays if that fails.
    """
    refuse_impossible_pair(plan.survey, plan.weights, pair)
    cell = CellSpec(pair, plan.context)
    log = cache_folder() / "asking" / f"{plan.model}.{pair.slug}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with plan.engine.serving(cell, log=log) as served:
        if differences := served.differences_from_cell(cell):
            raise mismatch_error(differences)
        if plan.prompt_form is PromptForm.COMPLETION:
            text = Completion(prompt=prompt, max_tokens=tokens)
            reply = served.client.complete(text)
        else:
            said = (Message("user", prompt),)
            chat = Chat(messages=said, max_tokens=tokens, template_args=NO_THINK_ARGS)
            reply = served.client.chat(chat)
    log.unlink(missing_ok=True)
    return replace(reply, text=mask_text(reply.text, shortest=SHORTEST_IN_ANSWERS))


def read_prompt(path: Path) -> str:
    """
    The text in the file at *path*; of stdin for ``-``.

    Raises:
        BadInput: If there is none.
    """
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MOST_PROMPT_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MOST_PROMPT_BYTES + 1)
    except OSError as error:
        raise _unreadable_prompt_error(
            path, f"cannot be read: {reason_of(error)}"
        ) from error
    text = data.decode(errors="replace")
    if len(data) > MOST_PROMPT_BYTES:
        raise _unreadable_prompt_error(
            path, f"has more than {MOST_PROMPT_BYTES >> 20} MiB"
        )
    if not text.strip():
        raise _unreadable_prompt_error(path, "is empty")
    return text


def _unreadable_prompt_error(path: Path, reason: str) -> BadInput:
    hint = "Name a text file with the prompt, or - for stdin."
    return BadInput(source=path, reason=reason, hint=hint)
