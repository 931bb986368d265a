"""A refusal of each kind, with the facts that change its sentence."""

from codeneedle.corpora.fitting import STRETCHED, TooLong, Untrained
from codeneedle.errors import CodeneedleError

FACTS = {"source": "corpus made", "needed": 5000, "context": 4096}


def made_refusals() -> dict[str, CodeneedleError]:
    """All of them, by what is refused."""
    return {
        "a longer context holds it": TooLong(**FACTS),
        "a longer context holds it, or less is asked": TooLong(
            **FACTS, beside="an answer", ways=["--generation-tokens 64"]
        ),
        "the training ends before": TooLong(**FACTS, trained=4096, ways=["--fit"]),
        "the training ends before, and nothing is left": TooLong(**FACTS, trained=4096),
        "longer than the training": Untrained(
            source="--context 8,192",
            trained=4096,
            way=f"--context 4096 or less, or {STRETCHED}",
        ),
    }
