"""
A stand-in for llama-fit-params with the log lines of the real one, and rules of its own
for which pairs have a kernel.

The first argument is a rule: ``cpu`` (no device), ``vulkan``, ``metal``, ``never``,
``cuda`` (whole graphs, whatever is converted), ``hybrid`` (layers on the host),
``by-device`` (Vulkan's on the first, ``never`` on others), or a fault.
"""

import os
import signal
import sys

LAYERS, CELLS = 4, 2048
KERNELS = {
    "vulkan": lambda k, v: (k == "bf16") == (v == "bf16"),
    "metal": lambda k, v: k == v,
    "never": lambda k, v: False,
    "moe-on-host": lambda k, v: k == v,
    "hybrid": lambda k, v: k == v,
    "cuda": lambda k, v: True,
}
REFUSED = (
    "0.00.005.974 E llama_init_from_model: "
    "model does not support different K ({}) and V ({})"
)


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def abort(line):
    sys.stderr.write(
        f"{line}\nterminate called after throwing an instance of 'std::runtime_error'\n"
        "  what():  failed to create llama_context from model\n"
    )
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGABRT)


def splits(rule, k, v):
    on_host = "--no-kv-offload" in sys.argv
    if rule == "moe-on-host":
        has_kernel = KERNELS[rule](k, v) and not on_host
        return 2 * LAYERS + 2 if has_kernel else 4 * LAYERS + 2
    if rule == "hybrid":
        # Its recurrent state goes to the host with the cache.
        has_kernel = KERNELS[rule](k, v)
        return 99 if on_host else 2 * LAYERS if has_kernel else 2 * LAYERS + 2
    if rule not in KERNELS:
        return 1
    return 2 if KERNELS[rule](k, v) and not on_host else 2 * LAYERS + 2


def misbehave(rule, k, v):
    if rule == "hang":
        signal.pause()
    if rule == "old":
        sys.stderr.write("error: invalid argument: --fit-print\n")
        sys.exit(1)
    if rule == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if rule == "silent":
        sys.exit(0)
    if rule == "other-words":
        sys.stderr.write("a graph was made, of two parts\n")
        sys.stdout.write("Vulkan0: 92 MiB of weights\n")
        sys.exit(0)
    if rule == "full" and k != v:
        abort(
            "E ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: "
            "out of memory"
        )
    if rule == "mute" and k != v:
        abort("D create_tensor: loading tensor")
    if rule == "mla" and k != v:
        # The logger gets as far as the reason in every third call.
        with open(f"{os.environ['HOME']}/calls", encoding="utf-8") as calls:  # noqa: PTH123 - starts faster than pathlib
            is_told = calls.read().count(f"{k}/{v}") % 3 == 0
        abort(REFUSED.format(k, v) if is_told else "D create_tensor: loading tensor")


def main():
    rule = sys.argv[1]
    if sys.argv[2:] == ["--help"]:
        from fake_perplexity import HELP

        sys.stdout.write(HELP)
        return
    if rule == "by-device":
        rule = "vulkan" if os.environ["GGML_VK_VISIBLE_DEVICES"] == "0" else "never"
    k, v = option("--cache-type-k"), option("--cache-type-v")
    with open(f"{os.environ['HOME']}/calls", "a", encoding="utf-8") as calls:  # noqa: PTH123 - likewise
        calls.write(f"{k}/{v} {option('--ctx-size')}\n")
    misbehave(rule, k, v)
    on_device = "CUDA0" if rule == "cuda" else "Vulkan0"
    device = on_device if rule in KERNELS else "CPU"
    sys.stderr.write(
        f"llama_kv_cache: {device} KV buffer size = 0.00 MiB\n"
        f"llama_kv_cache: size = 8.00 MiB ( {CELLS} cells, {LAYERS} layers,"
        f"  1/1 seqs), K ({k}): 4.00 MiB, V ({v}): 4.00 MiB\n"
        f"sched_reserve: graph: nodes = 133, splits = {splits(rule, k, v)}\n"
        "common_memory_breakdown_print: | memory breakdown [MiB] | total\n"
    )
    if rule in KERNELS:
        sys.stdout.write(f"{device} 92 8 100 \n")
    sys.stdout.write("Host 5 0 9 \n")


if __name__ == "__main__":
    main()
