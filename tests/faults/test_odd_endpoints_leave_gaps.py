"""Servers with OpenAI's API that answer nonsense, or leave something behind."""

import contextlib
import json
import socket
import threading

import fake_openai
import msgspec
from answers import forced, written
from calls import called
from fake_engine import made_weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from injections import processes_in
from started_sweeps import problem

from codeneedle.engines import http
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.messages import Chat, Completion, Message
from codeneedle.engines.openai.client import OpenAi
from codeneedle.engines.openai.engine import endpoint_engine_factory
from codeneedle.engines.openai.settings import EndpointSettings
from codeneedle.errors import CellError, MachineError, RequestError

UNSCORED = {
    "text offsets that fall": ("offsets=falling", "offsets that do not fit"),
    "log-probabilities above 0": ("logprob=5", "a log-probability of 5"),
    "log-probabilities that are infinite": ("logprob=Infinity", "of inf"),
    "log-probabilities that are minus infinite": ("logprob=-Infinity", "of -inf"),
    "no log-probabilities": ("logprob=null", "without a log-probability"),
    "tokens that spell another text": ("mangled", "other tokens"),
    "a token beside no other": ("alone", "no other one is listed"),
    "probabilities beyond 1": ("twice", "add up to more than 1"),
    "an echo of 6 MB": ("echoes=2", "longer than"),
    "no echo": ("echo-refused=501", "not implemented"),
}
"""What a server answers that is a gap: its fault, and words of the reason."""

FAILED = {
    "log-probabilities that are NaN": ("logprob=NaN", "computes NaN from token"),
    "counts below 0": ("counts=-3", "Expected `int` >= 0"),
    "counts beyond all words": ("counts=1e400", "Expected `int`"),
    "a redirect to no address": ("redirect-post=javascript:x", "307 redirect"),
}
"""What a server answers that costs its cell."""

HARMLESS = {
    "a cookie with an absurd date": "cookie=a=b; expires=Mon, 01-Jan-99999999999",
    "a reply that ends without end": "endless-end",
    "a connection that stays open": "open-end",
    "pings behind the last token, without end": "no-end",
    "the key that it was given": "says-key",
    "text offsets that are all zero": "offsets=zero",
    "text offsets that are all -1": "offsets=minus",
    "a process that it leaves behind": "leave",
}
"""What costs nothing."""

KEY = "sk-0123456789abcdef"


def swept(folder, faults, *arguments, **variables):
    """A sweep of servers, each with the faults of its cache type."""
    fakes = folder / "fakes.json"
    fakes.write_text(json.dumps(faults), encoding="utf-8")
    words = (
        f"{fake_openai.COMMAND} --port ${{port}} --k ${{k}} --fake echo --fakes {fakes}"
    )
    return called(
        folder,
        *("sweep", "--engine", "command", "--command", words, "--health", "/health"),
        *("--served-name", fake_openai.MODEL, "--no-evidence-by-memory"),
        *("--corpus", "tiny", "--context", "4096", "--prompt-form", "completion"),
        *("--types", ",".join(["f16", *faults]), "--probe", "recall", *arguments),
        **variables,
    )


def records(folder):
    """What is stored, by type."""
    files = folder.rglob("*.recall.json")
    return {
        file.name.partition("-")[0]: json.loads(file.read_text(encoding="utf-8"))
        for file in files
    }


def test_each_fault_of_an_endpoint_is_a_gap_or_costs_its_own_cell(
    folder, ledger, times, monkeypatch
):
    monkeypatch.setattr(http, "ENDED_S", 0.5)
    unscored = [*UNSCORED.items()][: times(99, quick=4)]
    failed = [*FAILED.items()][: times(99, quick=1)]
    faults = {name: fault for name, (fault, _) in [*unscored, *failed]} | HARMLESS
    types = {name: f"t{at}" for at, name in enumerate(faults)}
    done = swept(
        folder.path,
        {types[name]: [fault] for name, fault in faults.items()},
        *("--api-key-env", "MY_KEY"),
        MY_KEY=KEY,
    )
    found = records(folder.path)

    assert 1 == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    for name, (_, words) in failed:
        is_nan = "NaN" in name
        status = "unsupported" if is_nan else "crashed"
        assert status == found[types[name]]["status"], name
        assert words in found[types[name]]["reason"], name
    for name, (_, words) in unscored:
        stored = found[types[name]]["observation"]
        assert all(asked["reply"]["text"] for asked in written(stored)), name
        assert all(words in asked["error"] for asked in forced(stored)), name
        assert not any(asked["scores"] for asked in forced(stored)), name
    for name in HARMLESS:
        stored = found[types[name]]["observation"]
        assert not any(asked.get("error") for asked in forced(stored)), name
    assert not [
        path
        for path in folder.path.rglob("*")
        if path.is_file() and KEY.encode() in path.read_bytes()
    ]
    assert [] == processes_in(folder.path)
    for name in faults:
        observed = found[types[name]].get("observation") or {
            "answers": {"forced x": {}}
        }
        saw = forced(observed)[0].get("error") or problem(found[types[name]])
        ledger.note(f"an endpoint: {name}", saw, of=folder)


# --- any answer


ODD = (-1, 0, 1, 7, 2**31, -(2**63), 10**40, 1e308, -1e308, 0.5, -0.1)
ODD += (float("nan"), float("inf"), float("-inf"), "", "x", "return 1", None, True)
_odd = st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=3)
_odd |= st.lists(_odd, max_size=2) | st.just({})


def either(usual):
    """What a server should tell, or anything."""
    return st.just(usual) | _odd


def record_of(**fields):
    """An object with some of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


_pieces = ["a", ":", "\n", "ri", "ght", "z"]
_top = st.dictionaries(st.sampled_from(["ri", "x"]), either(-0.5), max_size=2)
_logprobs = record_of(
    tokens=either(_pieces),
    token_logprobs=either([None, *[-0.5] * 5]) | st.lists(_odd, max_size=6),
    top_logprobs=either([None, *[{"q": -3.0}] * 5]) | st.lists(_top, max_size=6),
    text_offset=either([0, 1, 2, 3, 5, 8]) | st.lists(_odd, max_size=6),
    content=either([{"token": "a", "logprob": -0.1, "top_logprobs": []}]),
)
_choice = record_of(
    text=either("a:\nrightz"),
    delta=record_of(content=either("a\n"), reasoning=either("")) | _odd,
    finish_reason=either("stop"),
    logprobs=_logprobs | _odd,
)
_usage = record_of(
    prompt_tokens=either(5),
    completion_tokens=either(1),
    prompt_tokens_details=record_of(cached_tokens=either(1)) | _odd,
)
_answer = record_of(
    choices=st.lists(_choice, max_size=2) | _odd,
    usage=_usage | _odd,
    data=st.lists(record_of(id=either("m")), max_size=2) | _odd,
    error=record_of(message=either("no"), type=either("x"), code=either(400)) | _odd,
)
_dates = st.builds(
    "{}, {} {} {} {}:00:00 {}".format,
    st.sampled_from(["Mon", ""]),
    st.integers(-1, 40),
    st.sampled_from(["Jan", "Xyz"]),
    st.sampled_from([0, 1, 9999, 10000, 99999999999, -5]),
    st.sampled_from([0, 23, 99, 10**20]),
    st.sampled_from(["GMT", "+9999", "-99999999", ""]),
)
_value = (
    _dates
    | st.integers().map(str)
    | st.sampled_from(["javascript:x", "http://[", "//\x1b", "1e999", "a=b; version=x"])
    | st.text(st.characters(max_codepoint=255, blacklist_characters="\r\n"), max_size=9)
)
_header = st.tuples(
    st.sampled_from(
        (
            *("Retry-After", "Location", "Set-Cookie", "Content-Type", "X-Odd"),
            *("Content-Length", "Transfer-Encoding", "Content-Encoding", "Upgrade"),
        )
    ),
    _value,
)
_status = st.sampled_from(
    (*[200] * 6, 204, 206, 301, 304, 307, 400, 401, 404, 422, 429, 500, 503, 999, 7)
)
_body = st.builds(
    lambda answers, is_stream: (
        b"".join(b"data: %b\n\n" % json.dumps(a).encode() for a in answers)
        + b"data: [DONE]\n\n"
        if is_stream
        else json.dumps(answers[0]).encode()
    ),
    st.lists(_answer, min_size=1, max_size=4),
    st.booleans(),
) | st.binary(max_size=40)


@contextlib.contextmanager
def saying(answer):
    """The address of a server that sends what the list *answer* holds to anybody."""

    def serve(listening):
        while True:
            with listening.accept()[0] as known:
                known.settimeout(1.0)
                with contextlib.suppress(OSError):
                    request = b""
                    while b"\r\n\r\n" not in request:
                        if not (came := known.recv(1 << 16)):
                            break
                        request += came
                    if not request:
                        return
                    known.sendall(answer[0])
                    known.shutdown(socket.SHUT_WR)
                    while known.recv(1 << 16):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            socket.create_connection(listening.getsockname()).close()
            thread.join()


def asked_of(url):
    """What may be asked of a server, each once."""
    client = OpenAi(url, api_key=KEY, silence_s=5.0)
    client.model, client.sleep = "m", lambda _: None
    question = Completion(prompt="a:\n", max_tokens=4)
    messages = (Message("user", "a:\n"),)
    chosen = EndpointSettings(url=url, pair="f16/f16")
    return (
        client.ask_model_names,
        lambda: client.ask_readiness_and_adopt_model(health="/health"),
        lambda: client.complete(question),
        lambda: client.chat(Chat(messages=messages, max_tokens=4)),
        lambda: client.force(question, "right"),
        lambda: client.ask_prompt_token_count("a"),
        lambda: endpoint_engine_factory(chosen, environment={})(
            ModelSpec(weights=made_weights(), name="made")
        ),
    )


def assert_plausible(found):
    """What is stored of an answer are numbers that can be."""
    encoded = json.loads(msgspec.json.encode(found, enc_hook=str))
    if isinstance(encoded, dict):
        numbers = [*encoded.get("logprobs", ()), 0.0]
        assert -104.0 <= min(numbers) <= max(numbers) <= 0.0
        assert 0 <= encoded.get("prompt_tokens", 0) < 1 << 31
        assert KEY not in json.dumps(encoded)


def test_no_answer_of_a_server_is_too_odd(ledger, times):
    answer = [b""]

    with saying(answer) as url:

        @settings(
            max_examples=times(5_000, quick=60),
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(_status, st.lists(_header, max_size=3), _body, st.randoms())
        def ask(status, headers, body, chance):
            lines = [f"HTTP/1.1 {status} X", *(f"{n}: {v}" for n, v in headers)]
            head = "\r\n".join(lines).encode("latin-1")
            answer[0] = head + b"\r\n\r\n" + body
            for question in chance.sample(asked_of(url), 2):
                with contextlib.suppress(CellError, RequestError, MachineError):
                    assert_plausible(question())

        ask()
    ledger.note("an endpoint: any answer at all", "an error with a hint, or nothing")
