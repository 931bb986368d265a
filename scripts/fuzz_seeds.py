"""Inputs that fuzzing begins with: fixtures of the tests, stretches of one thing."""

import importlib
import json
import math
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from codeneedle.cache_types import Pair
from codeneedle.engines.messages import Reply
from codeneedle.probes.observations import Answer
from codeneedle.probes.reading import lay_out_chunk
from codeneedle.probes.recall.passages import passage_of
from codeneedle.records.record import Status, as_json
from codeneedle.report.receipt import Receipt

ROOT = Path(__file__).parents[1]
HELPERS = ROOT / "tests" / "helpers"
LOGS = HELPERS / "logs"

STRETCH_BYTES = 1 << 16
"""Longest input that is tried; nothing may take long over so little."""

PIECE_BYTES = 2 << 10


def made(module: str) -> Any:
    """A helper module of the tests."""
    if str(HELPERS) not in sys.path:
        sys.path.append(str(HELPERS))
    return importlib.import_module(module)


def logs(prefix: str) -> list[bytes]:
    """What tools really said, in pieces, from files whose names begin with *prefix*."""
    files = sorted(LOGS.glob(f"{prefix}*"))
    return [piece for path in files for piece in _pieces(path.read_bytes())]


def _pieces(data: bytes) -> Iterator[bytes]:
    """*data*, cut after line ends: what is small is read, and changed, far faster."""
    piece = b""
    for line in data.splitlines(keepends=True):
        piece += line
        if len(piece) > PIECE_BYTES:
            yield piece
            piece = b""
    yield piece


def stretched(fragment: bytes) -> bytes:
    """*fragment* over and over, as long as an input may be."""
    return (fragment * (STRETCH_BYTES // len(fragment) + 1))[:STRETCH_BYTES]


def endpoint_answers() -> list[bytes]:
    """The same of a server with OpenAI's API."""
    tops = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -3}]
    told = {"token": "a", "logprob": -0.1, "top_logprobs": tops}
    chat = {"choices": [{"delta": {"content": "a\n"}, "logprobs": {"content": [told]}}]}
    ended = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    usage = {"prompt_tokens": 2, "completion_tokens": 1}
    echo = {
        "tokens": ["a", "rig", "ht", "b"],
        "token_logprobs": [None, -0.1, -0.2, -0.3],
        "top_logprobs": [None, *[{"x": -3.0}] * 3],
        "text_offset": [0, 1, 4, 6],
    }
    text = {"choices": [{"text": "a\n", "logprobs": echo, "finish_reason": "length"}]}
    last = {"choices": [], "usage": usage}
    echoed = {"choices": [{"text": "arightb", "logprobs": echo}], "usage": usage}
    error = {"error": {"message": "no", "type": "x", "code": 429}}
    return [
        b"\0\1" + _events(text, last) + b"data: [DONE]\n\n",
        b"\1\7" + _events(chat, ended, last),
        b"\2\0" + json.dumps(echoed).encode(),
        b"\3\0" + _events(text, last),
        b"\4\0" + json.dumps({"data": [{"id": "m"}]}).encode(),
        b"\x80\0" + json.dumps(error).encode(),
    ]


def streams() -> list[bytes]:
    """Events of both endpoints, behind the two bytes that say how they are read."""
    token = {"id": 5, "logprob": -0.1, "top_logprobs": [{"id": 6, "logprob": -3.2}]}
    timings = {"cache_n": 9, "prompt_n": 1, "prompt_ms": 2.5, "predicted_n": 1}
    text = {
        "content": "    a = 1\n",
        "stop": False,
        "timings": timings,
        "completion_probabilities": [token],
    }
    last = {"content": "", "stop": True, "stop_type": "limit", "timings": timings}
    said = {"delta": {"content": "x\n"}, "logprobs": {"content": [token]}}
    chat = {"choices": [said], "timings": timings}
    ended = {"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": timings}
    pieces = [{"id": 5, "piece": "end"}, {"id": 6, "piece": [195, 188]}]
    error = {"error": {"code": 500, "message": "no", "type": "server_error"}}
    long = {"type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 4}
    return [
        b"\0\1" + _events(text, text, last),
        b"\1\7" + _events(chat, ended) + b"data: [DONE]\n\n",
        b"\2\0" + json.dumps({"tokens": [1, 2]}).encode(),
        b"\3\0" + json.dumps({"prompt": "<|user|>"}).encode(),
        b"\4\0" + json.dumps({"data": [{"id": "alias"}]}).encode(),
        b"\5\0" + json.dumps({"tokens": pieces}).encode(),
        b"\0\0" + _events(text, error),
        b"\0\0error: " + json.dumps(error).encode() + b"\n",
        b"\x80\0" + json.dumps(error).encode(),
        b"\x80\0" + json.dumps({"error": long}).encode(),
    ]


def _events(*events: Any) -> bytes:
    return b"".join(
        b"data: " + json.dumps(event).encode() + b"\n\n" for event in events
    )


def records() -> list[bytes]:
    """A setup, then records of all probes, finished and not; none bears a seal."""
    records = made("made_records")
    prompts = [{"name": "1", "tokens": 2, "sha256": "x"}]
    facts = {"thinking": "", "sha256": "", "wording": 0}
    settings = {"generation": {"prompts": prompts, "tokens": 64, **facts}}
    first = {"pair": "f16/f16", "answers": {"1": _WRITTEN}}
    order = {"pairs": ["f16/q4_0"], "looks": [3, 6]}
    setup = records.made_setup(needles=3, types_k=("f16",), types_v=("f16", "q4_0"))
    setup = replace(
        setup,
        probes=setup.probes | _SETTINGS | settings,
        calibrated={"generation": first},
        order=order,
    )
    rounds = [records.made_round(needle) for needle in records.written_of(setup)]
    recalled = records.made_record(
        "f16/q4_0", rounds, priming=records.made_priming(records.written_of(setup)[0])
    )
    read = records.made_record(
        "f16/f16", [], forced=map(records.made_forced, records.forced_of(setup))
    )
    answers = [*read.observation["answers"].values()]
    read.observation["answers"] = {"read ab": {"answers": answers, "text_s": 1.5}}
    failed = records.failed_record("f16/f16", Status.OUT_OF_MEMORY, "no room")
    others = [
        replace(recalled, probe=probe, observation=observation)
        for probe, observation in _observations()
    ]
    everything = (setup, recalled, read, failed, *others)
    return [msgspec.json.format(msgspec.json.encode(each)) for each in everything]


def _observations() -> Iterator[tuple[str, Any]]:
    ppl = {"value": 2.5, "error": 0.1}
    plain = dict.fromkeys(
        ("kld_max", "kld_999", "kld_99", "kld_95", "kld_90", "kld_median", "kld_min"),
        0.5,
    )
    names = ("ppl", "ppl_base", "ppl_ratio", "kld", "dp_mean", "dp_rms", "same_top")
    statistics = plain | dict.fromkeys(names, ppl)
    compared = {
        **dict.fromkeys(("context", "chunks", "tokens"), 512),
        **dict.fromkeys(("seconds", "base_seconds", "reference_ppl"), 1.5),
        "statistics": statistics,
    }
    yield "divergence", {"reference": "f16/f16", "answers": {"512x2": compared}}
    speeds = {"depth": 0, "pp": [10.0, 11.0], "tg": [5.0, 5.5]}
    build = dict.fromkeys(("build", "cpu", "gpu", "backends"), "x") | {"threads": 1}
    yield "throughput", {"answers": {"0": speeds}, **build}
    reply = Reply(
        text="a b a b c",
        finish="stop",
        gaps=(0.5,) * 5,
        predicted_tokens=5,
        lengths=(2, 2, 2, 2, 1),
    )
    said = as_json(Answer(name="1", reply=reply))
    yield "generation", {"answers": {"1": said}, "facts": {"against": "f16/f16"}}


_WRITTEN = {
    "text": "a b a b a",
    "tokens": 5,
    "finish": "stop",
    "lengths": [2, 2, 2, 2, 1],
    "leads": [1.5] * 5,
}
"""An answer of the generation probe."""


def evaluations() -> list[bytes]:
    """Results as each reader knows them, behind a byte that chooses their file."""
    lines = [
        {"id": "a", "score": 0.5, "group": "g", "seed": 1, "tokens": 3},
        {"id": 2, "error": "none"},
    ]
    row = {"doc_id": 0, "filter": "f", "metrics": ["acc"], "acc": 1.0, "doc_hash": "0"}
    sample = {"id": "a", "epoch": 1, "scores": {"s": {"value": "C"}}}
    logs = [
        {"eval": {"task": "t", "scorers": [{"name": "s"}]}, "samples": [sample]},
        {"task_states": {"cases": {"a_0_1": {"status": "ok", "correct": True}}}},
        {"scores": {"scenario_results": [{"scenario_id": "a", "points": 2}]}},
        {"results": {"results": [{"testIdx": 0, "promptIdx": 0, "score": 1}]}},
    ]
    return [
        b"\0" + b"\n".join(map(msgspec.json.encode, lines)),
        b"\1" + msgspec.json.encode(row),
        *(b"\2" + msgspec.json.encode(log) for log in logs),
    ]


_SETTINGS = {
    "divergence": {"contexts": [512], "chunks": [2]},
    "throughput": {
        "depths": [0],
        "arguments": {},
        **dict.fromkeys(("repetitions", "prompt_tokens", "generated_tokens"), 2),
    },
}


def told_secrets() -> list[bytes]:
    """Texts around a key: an error, a log, JSON, and commands with other secrets."""
    texts = (
        "401: invalid key , see above",
        "INFO began\n\n\tAuthorization: Bearer sk-Zq7Xw4Kd \u2026\n",
        '{"error": {"message": "\\u0073k \\n\\\\n", "type": "x"}}',
        "docker run -e HF_TOKEN=x --password=autobahn --token $X http://a:b@c/d",
    )
    heads = (b"\0\0\0", b"\5\3\1", b"\7\11\3", b"\377\24\4")
    return [head + text.encode() for text, head in zip(texts, heads, strict=True)]


def transcripts() -> list[bytes]:
    """Conversations in both forms, as JSON and as JSON lines."""
    conversation = made("made_conversations").made_conversation(3)
    call = {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}
    shared = {"conversations": [{"from": "human", "value": "Hi"}, call]}
    lines = b"\n".join(json.dumps(each).encode() for each in (conversation, shared))
    tree = {
        "conv": {"currNode": "b"},
        "messages": [
            {"id": "a", "parent": None, "role": "user", "content": "Hi"},
            {"id": "b", "parent": "a", "role": "assistant", "content": "Ho"},
            {"id": "c", "parent": "a", "role": "assistant", "toolCalls": "[]"},
        ],
    }
    node = {"author": {"role": "assistant"}, "content": {"parts": ["Hi"]}}
    mapping = {"mapping": {"a": {"id": "a", "message": node, "parent": None}}}
    exports = (json.dumps(each).encode() for each in (tree, mapping))
    return [json.dumps([conversation, shared], indent=1).encode(), lines, *exports]


def ggufs() -> list[bytes]:
    """Headers of models, whole and broken."""
    files = made("gguf_files")
    keys = files.SHAPE | {
        "llama.attention.key_length": 64,
        "llama.attention.sliding_window": 128,
        "llama.attention.sliding_window_pattern": [1, 0, 1, 1],
        "llama.rope.scale": 1.5,
        "general.file_type": 7,
        "tokenizer.chat_template": "{{ x }}",
        "split.count": 1,
    }
    return [
        files.gguf_bytes(),
        files.gguf_bytes(keys, tensors=2),
        files.gguf_bytes(version=2, data=False),
        files.gguf_bytes(order=">"),
        *_attention_files(),
        b"<html>",
        b"PK\x03\x04",
    ]


def _attention_files() -> Iterator[bytes]:
    """Models of one layer, without and with a bias of K."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.gguf")
        for bias in (None, 50.0):
            written = made("made_attention").write_attention(path, bias=bias)
            yield written.read_bytes()


def base_files() -> list[bytes]:
    """The length of a note, the note, and the file that it stands beside."""
    identity = {
        **dict.fromkeys(("text_sha256", "weights_sha256", "llama"), "x"),
        **dict.fromkeys(("context", "vocabulary", "chunks_asked"), 3),
        "reference": "f16/f16",
    }
    numbers = dict.fromkeys(("chunks", "size_bytes", "ppl", "seconds"), 1)
    note = {"identity": identity, "fingerprint": "", **numbers}
    text = msgspec.json.encode(note)
    head = b"_logits_" + b"\3\0\0\0\3\0\0\0\1\0\0\0"
    return [len(text).to_bytes(2, "big") + text + head + bytes(32)]


ROW_IDS = (0, 1, 2, 0, 1, 2)
"""Tokens of the text whose rows are read."""


def row_files() -> list[bytes]:
    """A base file of one chunk, behind a byte that says in which pieces it comes."""
    header = struct.pack("<8sIii6i", b"_logits_", len(ROW_IDS), 3, 1, *ROW_IDS)
    even = struct.pack("<ff", 0.0, -math.log(3)) + bytes(8)
    file = header + even * 2
    return [b"\0" + file, b"\1" + file, b"\1" + file[:-3], b"\1" + file * 2]


def prompts() -> list[bytes]:
    """Prompts in each form that a file of them may have."""
    asked = {"role": "user", "content": "How does a clock keep time?"}
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}]
    return [
        b"How does a clock keep time?\n\n  Why?\r\n",
        json.dumps([{"messages": [asked], "tools": tools}]).encode(),
        *transcripts(),
    ]


def receipts() -> list[bytes]:
    """Receipts as they come: of the table of models, and in a quotation."""
    files = sorted((ROOT / "docs" / "models").glob("*.md"))
    facts = {"model": "a (x)", "engine": "y", "context": "9", "limit": "1 %"}
    rows = {Pair("f16", "f16"): ("", "0"), Pair("q8_0", "q4_0"): ("within", "1")}
    short = Receipt(facts=facts, columns=("word", "kld"), rows=rows).text()
    quoted = "".join(f"> {line}\n" for line in short.splitlines())
    whole = [path.read_bytes() for path in files]
    return [*whole, short.encode(), quoted.encode()]


def chunks() -> list[bytes]:
    """The note of a chunk that two functions were laid out in."""
    needles = [made("made_records").made_forced_needle(at) for at in range(2)]
    passages = list(map(passage_of, needles))
    tokenizer, tool = (
        made("fake_engine").ByteTokenizer(),
        made("made_reading").HalfTool(),
    )
    chunk = lay_out_chunk(tokenizer, tool, "a text\n", passages)
    return [msgspec.json.encode(chunk)]


def sweep_files() -> list[bytes]:
    """All that come with the package, and one that says everything."""
    files = sorted((ROOT / "codeneedle" / "sweep" / "files").glob("*.toml"))
    whole = b"""\
corpus = "x"
models = ["~/a.gguf"]
k_types = ["f16"]
probes = ["recall"]
contexts = [4096]
rotation = ["on", "off"]
prompt_form = "chat"
seed = 1
[variants]
a = ["-t", "2"]
[divergence]
contexts = [512]
chunks = [2]
[throughput]
depths = [0]
"""
    return [*(path.read_bytes() for path in files), whole]


def corpus_files() -> list[bytes]:
    """All that come with the project, and one of each kind."""
    files = sorted((ROOT / "corpora").glob("*.toml"))
    return [
        *(path.read_bytes() for path in files),
        b'files = ["a.py"]\nlimit_bytes = 9\nsample_k = 2\nkind = "unseen"\n',
        b'glob = "../**/*.py"\nlanguage = "python"\n',
        b"[generate]\nfunctions = 3\nvalue_length = 6\nname_length = 5\nseed = 7\n",
    ]


def replies() -> list[bytes]:
    """What a needle asks for, a null character, and what a model may say."""
    needle = made("made_records").made_needle()
    asked = "\n".join(needle.lines)
    said = [
        asked,
        f"Sure!\n```python\n{needle.signature}\n{asked}\n```\nDone.",
        f"<think>\nhm\n</think>\n{asked}\n```",
        asked.replace("\n", "\r\n"),
        "<thinking>" + asked,
    ]
    return [f"{asked}\0{text}".encode() for text in said]


def python_texts() -> list[bytes]:
    """Definitions of every form."""
    return [
        (HELPERS / "made_servers.py").read_bytes(),
        b"@a\nasync def f(a: int = (1, 2), *b, **c) -> 'x':\n    return 1\n",
        b"class A:\n  def f(self): return lambda: 0\n  def g(s) -> lambda: 1:\n    x\n",
        b'def f(x="""\n:""",\n   y=[\n]):  # :\n    def g():\n\tpass\n',
        b"if 1:\n    def f(): \\\n        pass\nelse:\n\x0c    def g(): pass\n",
    ]


def javascript_texts() -> list[bytes]:
    """Functions of every form, in the words of both parsers."""
    return [
        b"function a(x) {\n  return x;\n}\nvar b = function () {\n  c();\n};\n",
        b"class A { get x() {\n return 1 }\n static async *[k]() {\n} }\n",
        b"export default () => {\n  return `a${b}c`;\n};\n",
        b"const o = { 'p': function() {\n}, q() {\n}, r: async () => {\n} };\n",
        b"class B { #p = () => {\n}; static { x ??= y?.z } }\n/a[/]b/u.test(c);\n",
    ]


BRACED = {
    "c": b"#if A\nstatic int *f(int (*a)(void))\n{\n  return 0;\n}\n#endif\n",
    "cpp": b"namespace a { template <class T> struct B { B() : c(1) {\n d();\n }\n"
    b" operator bool() const {\n auto e = [&](int f) {\n };\n return 1;\n } }; }\n",
    "go": b"package a\nfunc (b *C[D]) e(f ...int) (int, error) {\n"
    b"\tg := func() {\n\t}\n}\n",
    "java": b"class A<B> { @C\n<D> int e() {\n F g = () -> {\n };\n return 1;\n } }\n",
    "rust": b"impl<'a, T> B for C<T> { #[d]\nfn e(&self) -> f64 {\n"
    b" let g = |h| {\n }; 1. } }\n",
    "tsx": b"const A = <T,>({ b }: C): D => {\n return <E<F> g={h}>{i}</E>;\n};\n",
    "typescript": b"abstract class A<B> { @c() private d = async (e?: F): "
    b"Promise<void> => {\n g!;\n } }\n"
    b"namespace H { function i(): asserts j is K {\n } }\n",
}
"""A text in each language that tree-sitter alone reads."""


def texts_of(name: str) -> list[bytes]:
    """Functions of the language *name*."""
    return [BRACED[name], BRACED[name].replace(b"\n", b"")]


def php_texts() -> list[bytes]:
    """Functions of every form."""
    return [
        b"<?php\nfunction a($x)\n{\n    return $x;\n}\n",
        b"<?php class A { #[B] public static function b(): int {\n return 1; } }\n",
        b"<p><?php $f = function () use ($x) {\n  echo <<<E\n a\nE;\n}; ?>\n",
        b"<?php enum E: int { case A = 1; function f() { match(1) {}; } }\n",
    ]
