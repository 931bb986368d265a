"""What a person asks of a sweep, before anything is checked."""

from dataclasses import dataclass
from pathlib import Path

from codeneedle.grid import DEFAULT_TYPES
from codeneedle.prompts import PromptForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """
    What a person asked for; None where they left it to us.

    Attributes:
        corpus: Name or path of the text.
        model: Path of the weights; None for the built-in model.
        k_types: Types of the grid's rows.
        v_types: Types of its columns.
        context: Context size, in tokens.
        prompt_form: How needles are asked for.
        prefill_no_think: Whether to begin the answer with an empty thought.
        fit: Whether a corpus that is too long is trimmed, rather than refused.
        seed: Of sampling and of the running order.
        server_args: Further arguments for llama-server.
        llama_server: Path of the binary.
        out: Folder of all run folders.
        divergence_contexts: Contexts to compare distributions at, in tokens;
            empty for what suits the model.
        chunks: Chunks of text to compare distributions on.
        text: File to compare distributions on; None for the corpus.
        depths: Depths to measure speed at, in tokens; empty for what suits.
        repetitions: Measurements of speed at each depth.
    """

    corpus: str | None = None
    model: Path | None = None
    k_types: tuple[str, ...] = DEFAULT_TYPES
    v_types: tuple[str, ...] = DEFAULT_TYPES
    context: int | None = None
    prompt_form: PromptForm | None = None
    prefill_no_think: bool = False
    fit: bool = True
    seed: int = 42
    server_args: tuple[str, ...] = ()
    llama_server: Path | None = None
    out: Path = Path("sweeps")
    divergence_contexts: tuple[int, ...] = ()
    chunks: int | None = None
    text: Path | None = None
    depths: tuple[int, ...] = ()
    repetitions: int | None = None
