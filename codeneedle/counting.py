"""How many tokens a prompt takes, counted by a server that does nothing else."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.client import Client
from codeneedle.engine.endings import ServerDied, is_about_an_argument
from codeneedle.engine.launch import Launch, without_offload
from codeneedle.engine.llama_server import serving
from codeneedle.engine.logfile import read_log
from codeneedle.errors import CellError, MachineError, RequestError
from codeneedle.planning import Plan
from codeneedle.prompts import (
    NO_THINK_ARGS,
    PromptForm,
    chat_messages,
    completion_prompt,
)
from codeneedle.records import NeedleFacts
from codeneedle.stage import thinking_args
from codeneedle.store import FolderUnwritable

BUDGET_FACTOR = 1.5
BUDGET_EXTRA_TOKENS = 64
"""
Tokens that a reply may have: one and a half times those of the truth, and some
for a preamble. Long enough for every answer that can still score, short enough
that one line without end costs seconds.
"""


class BadServerArguments(RequestError):  # noqa: N818 - named after the fact
    """llama-server does not take the arguments after ``--``, or ends over them."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(
            reason, hint="Check the arguments after '--': see 'llama-server --help'."
        )


class CannotCount(MachineError):  # noqa: N818 - named after the fact
    """No tokens can be counted, as the server that would do it fails."""

    def __init__(self, *, reason: str, log: Path) -> None:
        super().__init__(
            f"the corpus cannot be counted: {reason}", hint=f"See {log} for the cause."
        )


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts tokens of whole prompts with the server's own tokenizer."""

    client: Client
    plan: Plan

    def prompt(self, text: str, needle: NeedleFacts) -> int:
        """Tokens of the prompt that asks *needle* of *text*."""
        if self.plan.prompt_form is PromptForm.COMPLETION:
            return self.client.count_tokens(completion_prompt(text, needle))
        prefill = self.plan.request.prefill_no_think
        messages = chat_messages(text, needle, prefill_no_think=prefill)
        return self.client.count_tokens(self.client.render(messages, NO_THINK_ARGS))

    def budgets(self, needles: Sequence[NeedleFacts]) -> list[int]:
        """Tokens that the reply to each of *needles* may have, asked at once."""
        truths = ["\n".join(needle.lines) for needle in needles]
        return [_budget(tokens) for tokens in self.client.counts(truths)]

    def hardest(self, needles: Sequence[NeedleFacts]) -> tuple[NeedleFacts, int]:
        """The one of *needles* that takes most tokens, and the budget of its reply."""
        budgets = self.budgets(needles)
        asked = self.client.counts([needle.signature for needle in needles])
        sizes = [budget + tokens for budget, tokens in zip(budgets, asked, strict=True)]
        at = sizes.index(max(sizes))
        return needles[at], budgets[at]


def _budget(truth: int) -> int:
    return math.ceil(BUDGET_FACTOR * truth) + BUDGET_EXTRA_TOKENS


@contextlib.contextmanager
def counting(plan: Plan) -> Iterator[Counter]:
    """
    A server that only tokenizes: no cache types, smallest context, no warm-up.

    Raises:
        BadServerArguments: If it does not take the arguments of a person.
        CannotCount: If it fails in another way.
        FolderUnwritable: If the disk refuses.
    """
    launch = Launch(
        binary=plan.tools.server,
        weights=plan.weights.path,
        alias=f"{plan.model}.counting",
        context=512,
        pair=None,
        extra=(*thinking_args(plan), *without_offload(plan.request.server_args)),
        options=plan.server.options,
    )
    log = plan.store.folder / "logs" / "counting.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderUnwritable(folder=log.parent, reason=str(error)) from error
    try:
        with serving(launch, log=log, folder=plan.store.folder) as served:
            yield Counter(served.client, plan)
    except CellError as error:
        # No cell has begun: nothing of this is a finding about cache types.
        reason = _bad_arguments(error, log) if plan.request.server_args else None
        if reason is not None:
            raise BadServerArguments(reason=reason) from error
        raise CannotCount(reason=str(error), log=log) from error


def _bad_arguments(error: CellError, log: Path) -> str | None:
    """What is wrong with the server's arguments, if the error comes of them."""
    if isinstance(error, ServerDied) and error.returncode == 0:
        # As --version has it.
        return "llama-server does what its arguments say and ends, instead of serving"
    return str(error) if is_about_an_argument(read_log(log)) else None
