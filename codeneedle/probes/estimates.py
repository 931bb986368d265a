"""
What is known of a run before its first cell: about how many tokens its text has, by
bytes per token, and about how much of the text is sent.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from codeneedle.corpora.corpus import Corpus
from codeneedle.engines.engine import Engine
from codeneedle.engines.pace import Pace, Price
from codeneedle.models.weights import Weights
from codeneedle.probes.prompts import PromptForm
from codeneedle.records.record import Setup

BYTES_PER_TOKEN = {"incompressible": 1.4}
"""
Of generated text, whose names and values are random: 1.39 of random-bodies and 1.43 of
random-bodies-mini by SmolLM2's vocabulary.
"""

TEXT_SHARE = 0.85
"""Of a context, what a text may fill beside a question and its answer, about."""

USUAL_BYTES_PER_TOKEN = 3.5
"""Of source code, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What is known of a run before its first cell, without a server."""

    corpus: Corpus  # all of it
    context: int  # in tokens
    engine: Engine  # serves the model, and has the tools beside the server
    weights: Weights  # header of the model
    is_built_in: bool  # whether it is the built-in model, whose tokens are bytes
    folder: Path  # the run folder
    seed: int  # of the run
    prompt_form: PromptForm  # form of the prompts
    prefill_no_think: bool = False  # whether to begin answers with an empty thought
    setup: Setup | None = None
    """Of the run folder; None of a new one, whose lengths are estimated."""

    is_whole: bool = False  # whether the corpus must not be trimmed to the context
    decides: bool = False
    """Whether what was measured chooses the pair that is measured next."""

    pace: Pace | None = None  # how fast the model is; None if that is unknown
    unread: str = "the engine was not asked"
    """See `Engine.why_it_cannot_read`."""

    workers: int = 1  # cells that are measured side by side
    functions: int | None = None
    """Functions of a cell, in place of those that were chosen; None for these."""

    @property
    def trained_context_limit(self) -> int | None:
        """Tokens that the weights were trained for; None if that does not bind."""
        if self.engine.stretches_context:
            return None
        return self.weights.training_context or None

    @property
    def can_read_right_tokens(self) -> bool:
        """Whether the engine reads right tokens of a text here."""
        return not self.unread

    def has_asked_probe(self, probe: str) -> bool:
        """Whether the run folder has been asked *probe* before."""
        return self.setup is not None and probe in self.setup.probes

    def tokens(self, characters: float) -> int:
        """
        About how many tokens *characters* of the corpus are.

        As counted in the run folder, else by the kind of text; one each of the built-in
        model.
        """
        known = self.setup.corpus if self.setup else None
        per_token = BYTES_PER_TOKEN.get(self.corpus.kind, USUAL_BYTES_PER_TOKEN)
        if self.is_built_in:
            per_token = 1.0
        elif known and known.is_counted:
            per_token = known.characters / known.tokens
        return math.ceil(characters / per_token)

    @property
    def sent_corpus_share(self) -> float:
        """
        About how much of the corpus is sent, from 0 to 1.

        As counted in the run folder; else all, if it is whole, or `TEXT_SHARE` of the
        context.
        """
        if self.setup and self.setup.corpus.is_counted:
            return self.setup.corpus.characters / len(self.corpus.text)
        if self.is_whole:
            return 1.0
        room = TEXT_SHARE * self.context
        return min(1.0, room / self.tokens(len(self.corpus.text)))

    @property
    def sent_corpus_tokens(self) -> int:
        """About how many tokens of the corpus are sent."""
        return self.tokens(self.sent_corpus_share * len(self.corpus.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a cell is asked, before the first one, and its price."""

    price: Price
    phrase: str = ""  # what is asked, for the plan
