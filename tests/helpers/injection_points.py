"""
Places in the package where faults are injected, each by its dotted name.

A rename in the package changes one line here;
`tests/faults/test_injections_hit_and_count.py` says that every place exists.
"""

import importlib
from typing import Any

THROUGHPUT = "codeneedle.probes.throughput.probe"

POINTS = {
    # what happens, step by step
    "make the plan": "codeneedle.sweep.plan:plan",
    "start the counting server": (
        "codeneedle.engines.llama_cpp.engine:LlamaCpp.tokenizing"
    ),
    "start the server of a cell": (
        "codeneedle.engines.llama_cpp.engine:LlamaCpp.serving"
    ),
    "start a server process": "codeneedle.system.orphans:running",
    "wait for a server": "codeneedle.engines.started_servers:_wait_until_ready",
    "choose a port": "codeneedle.engines.started_servers:free_port",
    "ask for a completion": "codeneedle.engines.llama_cpp.client:Client.complete",
    "force a right answer": "codeneedle.engines.llama_cpp.client:Client.force",
    "render a conversation": (
        "codeneedle.engines.llama_cpp.client:Client.render_conversation"
    ),
    "look whether a process group lives": "codeneedle.system.processes:_has_members",
    "wait for a tool": "codeneedle.system.watched:ends_within",
    "select runs for a report": "codeneedle.report.chosen_runs:read_runs",
    # what is written
    "sync a file": "os:fsync",
    "write a record": "codeneedle.records.store:Store.write_record",
    "write a setup": "codeneedle.records.store:Store.merge_and_store_setup",
    "write the note of a server": "codeneedle.system.orphans:_write_note",
    "write a base file": (
        "codeneedle.engines.llama_cpp.perplexity:run_with_silence_limit"
    ),
    "write the hash of the weights": "codeneedle.models.weights:write_json_if_possible",
    "draw a picture": "codeneedle.report.heatmap:paint",
    # what is replaced
    "class of a child": "codeneedle.system.processes:Child",
    "time of day": "codeneedle.system.machine:now",
    "grace periods of a child": "codeneedle.system.processes:GRACES_S",
    "serve": "codeneedle.engines.llama_cpp.engine:serving_llama",
    "memory of counting": "codeneedle.engines.llama_cpp.engine:COUNT_MEMORY_BYTES",
    "timeout of counting": "codeneedle.engines.llama_cpp.engine:COUNT_TIMEOUT_S",
    "silence of llama-perplexity": "codeneedle.engines.llama_cpp.perplexity:SILENCE_S",
    "least limit of silence": "codeneedle.engines.silence_limits:LEAST_S",
    "multiple of a silence": "codeneedle.engines.silence_limits:MULTIPLE",
    "load timeout of llama-bench": f"{THROUGHPUT}:LOAD_TIMEOUT_S",
    "least timeout of llama-bench": f"{THROUGHPUT}:SHORTEST_TIMEOUT_S",
    "time per token of llama-bench": f"{THROUGHPUT}:SLOWEST_S_PER_TOKEN",
    "hash of a source package": "codeneedle.engines.llama_cpp.build:PACKAGE_SHA256",
    "pip of a build": "codeneedle.engines.llama_cpp.build:install_private_pip",
    "polling of a build": "codeneedle.engines.llama_cpp.build:POLL_S",
    "look for a GPU": "codeneedle.engines.llama_cpp.backends:has_nvidia_gpu",
}


def place(point: str) -> tuple[Any, str]:
    """The object that holds *point*, a module or a class, and its name there."""
    module, _, dotted = POINTS[point].partition(":")
    *path, name = dotted.split(".")
    holder = importlib.import_module(module)
    for part in path:
        holder = getattr(holder, part)
    return holder, name


def current(point: str) -> Any:
    """What stands at *point*."""
    return getattr(*place(point))


def put(point: str, value: object) -> None:
    """Replace what stands at *point*, for the rest of the process."""
    setattr(*place(point), value)
