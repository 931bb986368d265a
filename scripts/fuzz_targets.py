"""What is fuzzed: each reader of bytes from outside, what it may raise, its inputs."""

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import fuzz_seeds as seeds
import httpx
import msgspec
from typing_extensions import override

from codeneedle.cache_types import Pair
from codeneedle.corpora import languages, needles, reading, registry
from codeneedle.corpora.needles import Function, NeedleFacts
from codeneedle.engines import mismatch
from codeneedle.engines.llama_cpp import log
from codeneedle.engines.llama_cpp.base_file import BaseFile, Identity
from codeneedle.engines.llama_cpp.bench import (
    differences,
    has_refused_cache_type,
    last_phase,
)
from codeneedle.engines.llama_cpp.bench import read_result as read_bench
from codeneedle.engines.llama_cpp.client import Client
from codeneedle.engines.llama_cpp.installation import read_help
from codeneedle.engines.llama_cpp.perplexity_log import (
    announced_chunks_and_context,
    chunks_done,
    final_perplexity,
    find_error_line,
    first_nan_token_in_log,
    is_log_cut_off,
    lengths_if_text_too_short,
)
from codeneedle.engines.llama_cpp.reading import LOWEST, Rows
from codeneedle.engines.messages import Chat, Completion, Forced, Message, Reply
from codeneedle.engines.openai.client import OpenAi
from codeneedle.engines.tools import ReadTokens, SpeedTask
from codeneedle.errors import CellError, CodeneedleError, MachineError, RequestError
from codeneedle.models.kv_cache import (
    AvailableMemory,
    caches_of_plain_attention,
    predict_memory,
    why_misfit,
)
from codeneedle.models.moved_attention import moved_attention_by_k_type
from codeneedle.models.weights import read_weights_from_headers
from codeneedle.probes import PROBES
from codeneedle.probes.evaluation.readers import (
    read_samples_of_known_tool as read_results,
)
from codeneedle.probes.evaluation.record import Evaluation
from codeneedle.probes.generation.prompts import read_hash_and_prompts
from codeneedle.probes.observations import Answer
from codeneedle.probes.reading import Chunk, lay_out_chunk
from codeneedle.probes.recall.alignment import (
    align_reply,
    answer_end_offset,
    answer_lines,
)
from codeneedle.probes.recall.asker import stop_test_for_needle
from codeneedle.probes.recall.passages import passage_of
from codeneedle.probes.recall.record import recall_of
from codeneedle.probes.transcript.conversations import parse_and_check_conversations
from codeneedle.probes.transcript.rendering import parts_and_dropped_fields
from codeneedle.records.record import CellRecord, Run, Setup, Status, as_json, from_json
from codeneedle.records.store import (
    append_checksum,
    decode_record,
    decode_setup,
    encode_masked_and_sealed,
)
from codeneedle.report.models import models_document, read_rows_from
from codeneedle.report.receipt import (
    MOST_RECEIPTS,
    parse_receipts,
    receipt_objects,
    receipts_document,
)
from codeneedle.report.tidy import table_rows
from codeneedle.sweep import request
from codeneedle.system.secrets import (
    has_known_secret,
    mask_text,
    masked_values,
    register_secrets_to_mask,
    secret_name_in,
)
from codeneedle.verdict.trust import inferred_cpu_attention, suspect_cells

PAIR = Pair("q8_0", "q4_0")
_NEEDLE = seeds.made("made_records").made_needle()
_FORCED = [
    passage_of(seeds.made("made_records").made_forced_needle(at)) for at in range(2)
]
_HALF_TOOL = seeds.made("made_reading").HalfTool()


def claim(fact: object, words: str) -> None:
    """
    State what must hold of anything that was read.

    Raises:
        AssertionError: With *words*, if *fact* is false.
    """
    if not fact:
        raise AssertionError(words)


# --- files


_FOLDER = Path(tempfile.mkdtemp(prefix="codeneedle-fuzz-"))
"""Of this process; whoever starts it gives it a temporary folder to make it in."""


def read_base_file(data: bytes) -> None:
    """A base file and the note beside it; the first two bytes are the note's length."""
    base = BaseFile(_FOLDER / "x.kld")
    ends = 2 + int.from_bytes(data[:2], "big")
    base.note_path.write_bytes(data[2:ends])
    base.path.write_bytes(data[ends:])
    identity = Identity(
        text_sha256="x",
        weights_sha256="x",
        llama="x",
        reference="f16/f16",
        context=3,
        chunks_asked=3,
        vocabulary=3,
    )
    base.usable_reference(identity)


def read_gguf(data: bytes) -> None:
    """A model's header, and what is predicted from it and from its weights."""
    path = _FOLDER / "model.gguf"
    path.write_bytes(data)
    weights = read_weights_from_headers(path)
    pairs = [Pair("f16", "f16"), PAIR]
    predict_memory(
        weights,
        caches_of_plain_attention(weights, 4096),
        pairs,
        AvailableMemory(1 << 30, "memory"),
        refusal=lambda pair: why_misfit(weights, pair),
    )
    moved = moved_attention_by_k_type(weights).values()
    claim(all(0 <= share <= 1 for share in moved), "a share is between 0 and 1")


KEY = "sk-Zq7Xw4Kd9Rv2Ty6Bn8"
WHITE = ("", "\n", " \t", "\u00a0\u2028", "\r\n\x0b")


def read_secrets(data: bytes) -> None:
    """
    What a program tells of a key that it was given: the first three bytes say where it
    stands, where it is broken, and by what.
    """
    place, cut, white = (data + b"\0\0\0")[:3]
    text = data[3:].decode(errors="replace")
    at, cut = place % (len(text) + 1), cut % len(KEY)
    broken = f"{KEY[:cut]}{WHITE[white % len(WHITE)]}{KEY[cut:]}"
    told = f"{text[:at]}{broken}{text[at:]}"
    register_secrets_to_mask(KEY)
    secret_name_in(text)
    shown, stored = mask_text(told), msgspec.json.encode({told: [told]})
    claim(len(shown) == len(told), "places in a masked text are no longer valid")
    claim(has_known_secret(stored), "a key in JSON was not seen")
    ((name, (value,)),) = masked_values(msgspec.json.decode(stored)).items()
    for each in (shown, name, value):
        claim(KEY not in "".join(each.split()), "a key was told")


def read_sweep(data: bytes) -> None:
    """A sweep file."""
    (_FOLDER / "x.toml").write_bytes(data)
    found = request.read_sweep("x", folder=_FOLDER)
    request.parse_request_toml(request.request_toml_text(found), source="again")


RESULTS = ("results.jsonl", "samples_task.jsonl", "log.json")
"""What evaluations call their files."""


def read_evaluation(data: bytes) -> None:
    """What an evaluation left; the first byte chooses the name of the file."""
    with tempfile.TemporaryDirectory(dir=_FOLDER) as temporary:
        folder = Path(temporary)
        name = RESULTS[data[0] % len(RESULTS)] if data else RESULTS[0]
        (folder / name).write_bytes(data[1:])
        _, samples = read_results(folder)
    claim(all(0 <= each.score <= 1 for each in samples), "scores are from 0 to 1")
    stored = as_json(Evaluation(samples=samples))
    claim(from_json(stored, Evaluation, file="x").samples == samples, "it is stored")


def read_transcript(data: bytes) -> None:
    """Recorded conversations, each turn as it stands and as one text."""
    for conversation in parse_and_check_conversations(data, _FOLDER / "said.json"):
        for turn in conversation.turns:
            calls = "".join(f"{call.name} {call.arguments}" for call in turn.calls)
            text = f"{turn.reasoning}{turn.content}{calls}"
            parts, _ = parts_and_dropped_fields(turn, text)
            ends = [0, *(part.end for part in parts)]
            claim([part.start for part in parts] == ends[:-1], "parts are in order")
            claim(not parts or ends[-1] == len(text), "parts are the whole text")


def read_rows(data: bytes) -> None:
    """What llama-perplexity writes into a pipe; the first byte says in which pieces."""
    size = 1 + 97 * (data[0] if data else 0)
    rows = Rows(ids=seeds.ROW_IDS, wanted=(3, 4, 5), vocabulary=3)
    for at in range(1, len(data), size):
        rows.feed_bytes(data[at : at + size])
    claim(rows.taken == max(0, len(data) - 1), "all bytes are taken")
    claim(bool(rows.final_fault) != rows.is_whole, "what is not whole has a fault")
    if rows.is_whole:
        found = rows.wanted_token_scores()
        claim(all(LOWEST < each <= 0 for each in found.logprobs), "of a probability")
        claim(all(map(math.isfinite, found.leads)), "leads are numbers")


def read_prompts_file(data: bytes) -> None:
    """The user's prompts, as they are sent, hashed and named."""
    path = _FOLDER / "prompts.txt"
    path.write_bytes(data)
    _, prompts = read_hash_and_prompts(path)
    claim(len({each.name for each in prompts}) == len(prompts), "names are distinct")
    for each in prompts:
        claim(
            each.completion_text.encode(errors="replace") and each.sha256,
            "a prompt is a text",
        )


def read_receipts(data: bytes) -> None:
    """Receipts in a text, side by side and as rows of the table of models."""
    text = data.decode(errors="replace")
    found = list(parse_receipts(text, source="x"))
    receipt_objects(found)
    list(receipts_document(found[:MOST_RECEIPTS]))
    path = _FOLDER / "row.md"
    path.write_bytes(data)
    list(models_document(read_rows_from(path)))


def read_chunk(data: bytes) -> None:
    """A chunk that the first cell of a run has laid out for all."""
    with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        chunk = msgspec.json.decode(data, type=Chunk)
        if chunk.has_passages_scored_by(_FORCED, _HALF_TOOL):
            count = len(chunk.right_token_places)
            read = ReadTokens(logprobs=(0.0,) * count, leads=(0.0,) * count)
            for span in chunk.spans:
                claim(chunk.passage_token_count(span) > 0, "a function has tokens")
                _scores(chunk.scores_of(read, span, wall_s=0.0))


def read_corpus(data: bytes) -> None:
    """A corpus file; what it names is not looked for."""
    path = _FOLDER / "c.toml"
    path.write_bytes(data)
    registry.read_corpus_file(path).origin_phrase(path)


def read_record(data: bytes) -> None:
    """A record or a setup, and all metrics of it; as it is, and with a seal of ours."""
    forms = [data, append_checksum(data)] if data.strip() else [data]
    for read in (_read_record, _read_setup):
        for form in forms:
            with contextlib.suppress(RequestError):
                read(form)


def _read_record(data: bytes) -> None:
    record = decode_record(data, file="x")
    claim(
        decode_record(encode_masked_and_sealed(record), file="x") == record,
        "records stay",
    )
    _measured(record, _SETUP)


def _read_setup(data: bytes) -> None:
    setup = decode_setup(data, file="x")
    claim(
        decode_setup(encode_masked_and_sealed(setup), file="x") == setup, "setups stay"
    )
    for record in _RECORDS:
        with contextlib.suppress(RequestError):
            _measured(record, setup)


def _measured(record: CellRecord, setup: Setup) -> None:
    probe = PROBES.get(record.probe)
    if probe is None or not record.has_numbers:
        return
    for metric in (*probe.metrics, *probe.metrics_of(setup)):
        values = metric.values(record, setup)
        claim(all(isinstance(value, (int, float)) for value in values), "numbers")
        if metric.reference is not None:
            metric.reference(record)
    table_rows([Run(name="x", setup=setup, records=(record,))])


_SETUP_BYTES, *_RECORD_BYTES = seeds.records()
_SETUP = decode_setup(append_checksum(_SETUP_BYTES), file="x")
_RECORDS = [decode_record(append_checksum(data), file="x") for data in _RECORD_BYTES]


# --- texts


def read_reply(data: bytes) -> None:
    """What a model says to a needle; the two stand around a null character."""
    asked, _, reply = data.decode(errors="replace").partition("\0")
    lines = asked.split("\n")
    needle = NeedleFacts(
        name="f",
        signature=_NEEDLE.signature,
        line=1,
        depth=0.0,
        lines=tuple(lines[:20]),
        more=tuple(lines[20:25]),
    )
    for strict in (False, True):
        scored = align_reply(needle, reply, strict_indent=strict)
        content = sum(bool(line.strip()) for line in needle.lines)
        claim(
            0 <= scored.matched_line_count <= content,
            "no more is matched than was asked",
        )
    claim(
        0 <= answer_end_offset(needle, reply) <= len(reply),
        "an answer ends in its reply",
    )
    answer_lines(needle, reply)
    stop_test_for_needle(needle)(reply)


def source_reader(suffix: str) -> Callable[[bytes], None]:
    """Reads source text in the language whose files end with *suffix*."""

    def read(data: bytes) -> None:
        text = reading.decode_source_text(data, label="x")
        language = languages.language_of_suffix(suffix, source="x")
        try:
            found = language.functions(text)
        except languages.Unparsable as error:
            found = [*error.kept]
        if language.unconfirmed:
            language.unconfirmed(text, found)
        lines = text.split("\n")
        for function in found:
            _stands(function, lines)
        asked = needles.eligible_functions(text, found)
        for function in needles.choose_functions(asked, line_count=len(lines)):
            forced = min(function.nonblank_line_count, needles.FORCED_LINES)
            needles.forced_needle(function, depth=0.0, lines=forced, seed=42)
        cuts = needles.cut_line_numbers(found)
        claim(cuts == sorted(set(cuts)), "cuts ascend")

    return read


def _stands(function: Function, lines: Sequence[str]) -> None:
    start = function.line - 1
    opens = start + function.signature.count("\n") + 1
    ends = opens + len(function.body)
    claim(
        "\n".join(lines[start:opens]) == function.signature, "signatures are verbatim"
    )
    claim(tuple(lines[opens:ends]) == function.body, "bodies are verbatim")
    claim(function.last_line_number <= len(lines), "functions end before their text")


# --- answers and logs of servers, output of tools


class _Server(httpx.BaseTransport):
    """A server that says what it is told to say, in pieces of one size."""

    def __init__(self) -> None:
        self.data, self.size, self.code = b"", 1, 200

    @override
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer whatever is asked."""
        starts = range(0, len(self.data), self.size)
        chunks = (self.data[at : at + self.size] for at in starts)
        return httpx.Response(self.code, content=chunks, request=request)


_SERVER = _Server()
_CLIENT = Client("http://127.0.0.1:9", api_key="none", transport=_SERVER)
_IS_REFUSED = 0x80
_COMPLETION = Completion(prompt="", max_tokens=1)
_SAID = (Message("user", ""),)


def _ask(questions: Sequence[Callable[[], object]], data: bytes) -> None:
    """Two bytes before an answer choose the question, its success and the cuts."""
    how, cut = (*data[:2], 0, 0)[:2]
    _SERVER.data, _SERVER.size = data[2:], 1 + 97 * cut
    _SERVER.code = 400 if how & _IS_REFUSED else 200
    questions[(how & ~_IS_REFUSED) % len(questions)]()


def read_endpoint(data: bytes) -> None:
    """What a server with OpenAI's API answers."""
    _ENDPOINT.no_echo, _ENDPOINT.left_out = "", ()
    _ask(_ENDPOINT_QUESTIONS, data)


def _scores(found: Forced) -> None:
    """Scores are numbers, each of a token."""
    claim(all(number <= 0 for number in found.logprobs), "probabilities are below 1")
    claim(all(map(math.isfinite, found.leads)), "leads are numbers")
    sizes = {len(found.logprobs), len(found.leads), len(found.ends)}
    claim(len(sizes) == 1, "each token has a score")


_ENDPOINT = OpenAi("http://127.0.0.1:9/v1", api_key="sk-secret", transport=_SERVER)
_ENDPOINT.sleep = lambda _s: None
_ENDPOINT_QUESTIONS: tuple[Callable[[], object], ...] = (
    lambda: _keeps(
        _ENDPOINT.complete(_COMPLETION, enough=stop_test_for_needle(_NEEDLE))
    ),
    lambda: _keeps(_ENDPOINT.chat(Chat(messages=_SAID, max_tokens=1))),
    lambda: _scores(_ENDPOINT.force(_COMPLETION, "right")),
    lambda: _ENDPOINT.ask_prompt_token_count("a"),
    lambda: _ENDPOINT.ask_readiness_and_adopt_model(health="/health"),
)


def _lay_out() -> None:
    """A chunk of tokens as a server tells them."""
    with contextlib.suppress(RequestError):
        lay_out_chunk(_CLIENT, _HALF_TOOL, "a text\n", _FORCED)


_QUESTIONS: tuple[Callable[[], object], ...] = (
    lambda: _keeps(_CLIENT.complete(_COMPLETION, enough=stop_test_for_needle(_NEEDLE))),
    lambda: _keeps(_CLIENT.chat(Chat(messages=_SAID, max_tokens=1))),
    lambda: _CLIENT.count_tokens(""),
    lambda: _CLIENT.render(_SAID),
    lambda: _CLIENT.readiness("alias"),
    _lay_out,
)


def read_answer(data: bytes) -> None:
    """What llama-server answers."""
    _ask(_QUESTIONS, data)


def _keeps(reply: Reply) -> None:
    """A reply is stored, and read back as it was."""
    asked = Answer(name="f_a", reply=reply)
    stored = _stored({"answers": {"written f_a": as_json(asked)}})
    (kept,) = recall_of(stored).rounds
    claim(kept == asked, "a round is read back as it was")
    numbers = (*reply.logprobs, *reply.gaps, reply.prompt_ms, reply.predicted_ms)
    claim(all(map(math.isfinite, numbers)), "what is observed is a number")
    claim(sum(reply.lengths) <= len(reply.text), "tokens have no text but the reply")


def _stored(observation: dict[str, Any] | None = None, **facts: Any) -> CellRecord:
    record = CellRecord(
        pair=PAIR,
        probe="recall",
        status=Status.FINISHED,
        started="",
        observation=observation,
        **facts,
    )
    read = decode_record(encode_masked_and_sealed(record), file="x")
    claim(read == record, "a record is read back as it was")
    return read


def read_server_log(data: bytes) -> None:
    """The log of a server, and all that is concluded from it."""
    text = data.decode(errors="replace")
    effective = log.effective_settings(text)
    asked = mismatch.RequestedSettings(pair=PAIR, context=4096, all_layers=True)
    phrases = mismatch.differences(asked, effective)
    troubles = [log.find_trouble(text)]
    lines = (*phrases, *log.setting_lines(text), *log.last_lines(text))
    lines = (*lines, effective.attention_evidence)
    lines = (*lines, *(each.reason for each in troubles if each))
    claim(all("\n" not in line for line in lines), "lines are lines")
    record = _stored(effective=effective, log_excerpt=lines)
    other = replace(record, pair=Pair("f16", "f16"))
    suspect_cells([record, other])
    inferred_cpu_attention([record, other], speed=lambda _: 1.0)


def read_perplexity(data: bytes) -> None:
    """The log of llama-perplexity."""
    text = data.decode(errors="replace")
    found = final_perplexity(text)
    claim(found is None or find_error_line(text) is None, "failures have no perplexity")
    for read in (
        chunks_done,
        is_log_cut_off,
        first_nan_token_in_log,
        announced_chunks_and_context,
        lengths_if_text_too_short,
    ):
        read(text)


def read_bench_lines(data: bytes) -> None:
    """The output of llama-bench, and of ``--help``."""
    text = data.decode(errors="replace")
    last_phase(text)
    has_refused_cache_type(text)
    version, _, options = text.partition("\0")
    read_help(version, options)
    asked = SpeedTask(
        pair=PAIR, depth=0, prompt_tokens=64, generated_tokens=16, repetitions=2
    )
    result = read_bench(text, asked)
    list(differences(result, asked, layers=999))
    claim(all(map(math.isfinite, result.pp.speeds)), "speeds are numbers")


# --- the targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    A reader of bytes from elsewhere.

    Attributes:
        name: What ``--target`` takes.
        reads: Takes any bytes.
        refuses: What it may raise; anything else is a defect.
        seeds: Inputs to begin with.
        fragments: Each is tried over and over, 64 KiB long.
        share: Of all inputs, how many parts are its own.
    """

    name: str
    reads: Callable[[bytes], object]
    refuses: type[CodeneedleError] | tuple[()]
    seeds: Callable[[], list[bytes]]
    fragments: tuple[bytes, ...] = ()
    share: int = 1

    def digest(self, data: bytes) -> None:
        """Read *data*; whatever this raises is a defect of ours."""
        try:
            self.reads(data)
        except self.refuses as error:
            claim(bool(str(error) and error.hint), "an error has words and a hint")

    def inputs(self) -> Iterator[bytes]:
        """What is tried before anything is made up."""
        yield b""
        yield from self.seeds()
        yield from map(seeds.stretched, (*GENERAL, *self.fragments))


GENERAL = (b"\0", b"\xff", b" ", b"\n", b"a", b"0", b"[", b"{", b'"', b"a\n", b"\\")
"""What any reader may choke on."""


TARGETS = {
    target.name: target
    for target in (
        Target(
            name="answers",
            reads=read_answer,
            refuses=CellError,
            seeds=seeds.streams,
            fragments=(b'\0\1data: {"content":"a\\n"}\n', b'\4\0{"a":', b"\0\0data"),
            share=8,
        ),
        Target(
            name="transcript",
            reads=read_transcript,
            refuses=RequestError,
            seeds=seeds.transcripts,
            fragments=(b'{"role":"assistant","content":"```\\n"},', b"<think>", b"[{"),
        ),
        Target(
            name="endpoint",
            reads=read_endpoint,
            refuses=CellError,
            seeds=seeds.endpoint_answers,
            fragments=(b'\0\1data: {"choices":[{"text":"a\\n"}]}\n', b'\2\0{"a":'),
            share=8,
        ),
        Target(
            name="server-log",
            reads=read_server_log,
            refuses=(),
            seeds=lambda: [*seeds.logs("real"), *seeds.logs("quoted")],
            fragments=(b"\x1b]", b"\x1b[", b"prompt cache", b"K (", b"splits = 1"),
            share=6,
        ),
        Target(
            name="perplexity",
            reads=read_perplexity,
            refuses=(),
            seeds=lambda: seeds.logs("perplexity"),
            fragments=(
                b"[1]",
                b"[1]1",
                b"A : ",
                b"1 1.0 \xc2\xb1 ",
                b"over 1 chunks, ",
            ),
            share=8,
        ),
        Target(
            name="bench",
            reads=read_bench_lines,
            refuses=CellError,
            seeds=lambda: seeds.logs("bench"),
            fragments=(b"--a,", b"allowed values: a,", b"version: ", b'{"a":'),
            share=17,
        ),
        Target(
            name="base-file",
            reads=read_base_file,
            refuses=(),
            seeds=seeds.base_files,
            share=10,
        ),
        Target(
            name="gguf",
            reads=read_gguf,
            refuses=MachineError,
            seeds=seeds.ggufs,
            share=8,
        ),
        Target(
            name="sweep-file",
            reads=read_sweep,
            refuses=RequestError,
            seeds=seeds.sweep_files,
            fragments=(b"a=", b"[a]\n", b"a.", b"a=[", b'"""', b"a={b="),
            share=8,
        ),
        Target(
            name="evaluations",
            reads=read_evaluation,
            refuses=CellError,
            seeds=seeds.evaluations,
            fragments=(b'\0{"id":1,"score":1}\n', b'\2{"a":', b"\1[1,"),
            share=4,
        ),
        Target(
            name="secrets",
            reads=read_secrets,
            refuses=(),
            seeds=seeds.told_secrets,
            fragments=(b"--token=a ", b"A_KEY: ", b'{"password":"', b"sk-Zq7X", b"\\n"),
            share=8,
        ),
        Target(
            name="rows",
            reads=read_rows,
            refuses=(),
            seeds=seeds.row_files,
            share=8,
        ),
        Target(
            name="prompts",
            reads=read_prompts_file,
            refuses=RequestError,
            seeds=seeds.prompts,
            fragments=(b"a\n", b'{"messages":[{"role":"user","content":"a"}]}\n'),
            share=4,
        ),
        Target(
            name="receipts",
            reads=read_receipts,
            refuses=RequestError,
            seeds=seeds.receipts,
            fragments=(b"codeneedle receipt 3: \n", b"a/b|", b"K/V\n", b"; model a"),
            share=4,
        ),
        Target(
            name="chunk",
            reads=read_chunk,
            refuses=(),
            seeds=seeds.chunks,
            share=4,
        ),
        Target(
            name="corpus-file",
            reads=read_corpus,
            refuses=RequestError,
            seeds=seeds.corpus_files,
            fragments=(b"a=", b"[a]\n", b"a.", b"a=[", b'"""', b"a={b="),
            share=10,
        ),
        Target(
            name="records",
            reads=read_record,
            refuses=(),
            seeds=seeds.records,
            fragments=(b'{"a":', b"[1,"),
            share=6,
        ),
        Target(
            name="replies",
            reads=read_reply,
            refuses=(),
            seeds=seeds.replies,
            fragments=(b"<think>", b"</think>", b"```\n", b"\0a\n", b"\r", b"~~~"),
            share=15,
        ),
        Target(
            name="python",
            reads=source_reader(".py"),
            refuses=RequestError,
            seeds=seeds.python_texts,
            fragments=(b"(", b"-", b"def f():0\n", b"lambda:", b"f(", b"a.", b"not "),
            share=5,
        ),
        Target(
            name="javascript",
            reads=source_reader(".js"),
            refuses=RequestError,
            seeds=seeds.javascript_texts,
            fragments=(b"(", b"function a(){", b"a=>", b"`${", b"/a/", b"!", b"a=>{"),
            share=3,
        ),
        Target(
            name="php",
            reads=source_reader(".php"),
            refuses=RequestError,
            seeds=seeds.php_texts,
            fragments=(b"<?php ", b"function a(){\n", b"<<<A\n", b"$"),
            share=4,
        ),
        *(
            Target(
                name=name,
                reads=source_reader(language.suffixes[0]),
                refuses=RequestError,
                seeds=partial(seeds.texts_of, name),
                fragments=(b"(", b"a{", b"a(){\n", b"a<", b"#if a\n", b"<a>"),
                share=2,
            )
            for name, language in languages.all_languages().items()
            if name in seeds.BRACED
        ),
    )
}
"""Everything that is fuzzed, by name."""
