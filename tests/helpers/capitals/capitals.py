"""An inspect_ai task on local data: capitals of 64 countries."""

from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import json_dataset
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def capitals() -> Task:
    """One short answer for each."""
    return Task(
        dataset=json_dataset(str(Path(__file__).with_name("capitals.jsonl"))),
        solver=generate(),
        scorer=includes(),
        config=GenerateConfig(max_tokens=24, temperature=0.0, max_connections=1),
    )
