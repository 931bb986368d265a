"""A text, whose divergences fake tools measure; a stored run, and perplexities less."""

import json
from dataclasses import replace
from pathlib import Path

from codeneedle.engines.llama_cpp.arguments import (
    base_file_command,
    comparison_command,
    cuda_kernels_option,
    text_file_in,
)
from codeneedle.records.store import Store
from codeneedle.report.llama_form import Dialect

TEXT = "".join(f"line {at}: {at * 7919:x}\n" for at in range(400))
DIALECT = Dialect(
    base=base_file_command,
    compares=comparison_command,
    text=text_file_in,
    build=cuda_kernels_option,
)
GOLDEN = Path(__file__).parents[1] / "golden" / "runs" / "divergence"


def golden_run():
    """A stored run of f16 and q4_0."""
    return Store(GOLDEN / "golden" / "needle-nano").read_run()


def without_perplexities(run, *pairs, reference_is_told=True):
    """*run*, the logs of whose *pairs*, and maybe of the base file, had no end."""

    def cut(record):
        stored = json.loads(json.dumps(record.observation))
        for answer in stored["answers"].values():
            if record.pair in pairs:
                answer["statistics"]["ppl"] = None
                answer["retries"] = 3
            if not reference_is_told:
                answer["reference_ppl"] = None
        return replace(record, observation=stored)

    records = (
        cut(each) if each.probe == "divergence" else each for each in run.records
    )
    return replace(run, records=tuple(records))
