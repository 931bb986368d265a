"""A llama-server, by one that misbehaves on request and by the real one."""

import shlex
import signal
import socket
from dataclasses import replace

import pytest
from fake_engine import made_weights
from made_servers import PAIR, fake_launch, fake_server, made_launch

from codeneedle.cache_types import Pair, is_full_precision
from codeneedle.engines.attention_place import with_attention_place
from codeneedle.engines.engine import CellSpec
from codeneedle.engines.exit_causes import Died
from codeneedle.engines.llama_cpp import server
from codeneedle.engines.llama_cpp.installation import Program, ask_server_facts
from codeneedle.engines.llama_cpp.log import read_log
from codeneedle.engines.llama_cpp.server import LlamaServer, load_limit_s, serving_llama
from codeneedle.engines.messages import Completion, Readiness
from codeneedle.errors import CellError
from codeneedle.records.record import Attention, Status
from codeneedle.system import processes

pytestmark = pytest.mark.slow

CELL = CellSpec(PAIR, 4096)
QUESTION = Completion(prompt="Go on", max_tokens=50)


@pytest.fixture
def impatient(monkeypatch):
    """Children are given moments to leave, not seconds."""
    graces = ((signal.SIGINT, 0.1), (signal.SIGTERM, 0.1), (signal.SIGKILL, 60.0))
    monkeypatch.setattr(processes, "GRACES_S", graces)


def test_a_served_cell_is_what_was_asked_and_gone_afterwards(tmp_path):
    with fake_server(tmp_path) as served:
        assert Readiness.READY is served.client.readiness(served.launch.alias)
        (kv,) = served.effective().kv
        assert () == served.differences_from_cell(CELL)

    assert PAIR == Pair(kv.k_type, kv.v_type)
    assert served.child.returncode is not None


def test_the_log_begins_with_the_command_which_is_not_read_as_output(tmp_path):
    with fake_server(tmp_path) as served:
        text = served.log.read_text(encoding="utf-8")
        shown = read_log(served.log)

    assert f"$ {shlex.join(served.command)}" == text.splitlines()[0]
    assert shlex.join(served.command) not in shown
    assert bool(shown)


def test_a_server_has_a_name_of_its_own(tmp_path):
    """So that the server of an earlier start is never taken for this one."""
    names = set()
    for _ in range(2):
        with fake_server(tmp_path) as served:
            names.add(served.command[served.command.index("--alias") + 1])

    assert 2 == len(names)
    assert all(name.startswith("made-cell.") for name in names)


@pytest.mark.parametrize("fault", ["die=7", "die-loading=7", "die-in-round=7"])
def test_a_server_that_dies_is_reported_at_once(fault, tmp_path):
    with pytest.raises(Died) as caught, fake_server(tmp_path, fault) as served:
        served.client.complete(QUESTION)

    assert 7 == caught.value.returncode
    assert str(tmp_path / "server.log") in caught.value.hint


SHUTS_DOWN = "cleaning up before exit..."


@pytest.mark.parametrize(
    ("line", "status", "excerpt"),
    [
        ("Unsupported cache type: q9_0", "unsupported", 1),
        (SHUTS_DOWN, "crashed", 0),
        ("nothing in particular", "crashed", 1),
    ],
    ids=["a type", "told to end", "nothing"],
)
def test_the_log_says_why_a_server_died(line, status, excerpt, tmp_path, golden):
    with (
        pytest.raises(Died) as caught,
        fake_server(tmp_path, f"say={line}", "die=1"),
    ):
        pass

    assert golden == str(caught.value)
    assert status == caught.value.status
    assert (line,) * excerpt == caught.value.log_excerpt


def test_other_errors_of_a_block_get_the_last_words_of_the_log(tmp_path):
    with pytest.raises(CellError) as caught, fake_server(tmp_path, "html") as served:
        served.client.complete(QUESTION)

    assert "listening" in caught.value.log_excerpt[-1]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("loading", "still loading"),
        ("mute", "does not answer"),
        ("stranger", "under its name"),
    ],
)
def test_a_server_that_never_gets_ready_is_given_up(fault, words, tmp_path, impatient):
    with (
        pytest.raises(CellError) as caught,
        fake_server(tmp_path, fault, load_timeout_s=4.0),
    ):
        pass

    assert words in str(caught.value)
    assert "timed-out" == caught.value.status


def test_a_server_that_says_too_early_that_it_is_well_is_waited_for(tmp_path):
    with fake_server(tmp_path, "early=3") as served:
        assert "" == served.client.refusal
        assert served.client.complete(QUESTION).text


def test_what_a_server_answers_while_it_loads_is_in_the_reason(tmp_path, impatient):
    with (
        pytest.raises(CellError, match=r"it answers 503 .*Loading model"),
        fake_server(tmp_path, "early=99999", load_timeout_s=4.0),
    ):
        pass


@pytest.mark.parametrize(
    ("gigabytes", "limit_s"), [(0, 600.0), (10, 800.0), (500, 1800.0)]
)
def test_a_server_may_load_as_long_as_a_slow_disk_takes(gigabytes, limit_s):
    assert limit_s == load_limit_s(
        replace(made_weights(), size_bytes=gigabytes * 10**9)
    )


FORCED_OFF = "flash_attn is not compatible with Grok - forcing off"


def test_a_model_without_flash_attention_is_served_with_a_plain_v_and_marked(tmp_path):
    """The engine switches it off whatever is asked; a quantized V needs it."""
    for pair in (PAIR, Pair("q8_0", "f16")):
        with fake_server(tmp_path, f"no-flash={FORCED_OFF}", f"types={pair}") as served:
            cell = CellSpec(pair, 4096)
            if is_full_precision(pair.v):
                assert () == served.differences_from_cell(cell)
                assert Attention.PLAIN is served.effective().attention
                continue
            with pytest.raises(CellError, match="forcing off") as caught:
                served.differences_from_cell(cell)
            assert Status.UNSUPPORTED is caught.value.status


def test_flash_attention_that_is_off_without_a_reason_is_another_experiment(
    tmp_path, golden
):
    with fake_server(tmp_path, "no-flash=") as served:
        assert golden == served.differences_from_cell(CELL)


def test_a_pair_that_hangs_at_warm_up_is_given_up(tmp_path, impatient):
    """Long before loading would be: the log says that it is over."""
    launch = fake_launch("say=warming up the model with an empty run", "loading")
    with (
        pytest.raises(CellError) as caught,
        serving_llama(
            launch,
            log=tmp_path / "server.log",
            load_timeout_s=3600.0,
            warmup_timeout_s=0.2,
        ),
    ):
        pass

    assert "hangs at warm-up" in str(caught.value)
    assert "timed-out" == caught.value.status
    assert any("warming up" in line for line in caught.value.log_excerpt)


def test_types_that_are_not_named_are_told_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "LOG_DELAY_S", 0.1)
    with fake_server(tmp_path, "no-kv") as served:
        (difference,) = served.differences_from_cell(CELL)

    assert "cannot be verified" in difference


def test_a_part_of_the_layers_differs_unless_the_user_chose_it(tmp_path, golden):
    launch = fake_launch("say=load_tensors: offloaded 20/33 layers to GPU")
    chosen = replace(launch, extra=(*launch.extra, "-ngl", "20"))
    log = tmp_path / "server.log"

    with serving_llama(launch, log=log) as served:
        assert golden == served.differences_from_cell(CELL)
    with serving_llama(chosen, log=log) as served:
        assert () == served.differences_from_cell(CELL)
        assert 20 == served.effective().offloaded_layers


def test_the_memory_of_a_server_is_known_after_its_end(tmp_path):
    with fake_server(tmp_path) as served:
        pass

    assert (served.peak_rss_bytes() or 0) > 1 << 20


@pytest.fixture(scope="session")
def real_launch(llama_server, nano):
    """What starts the real server with the built-in model."""
    return made_launch(
        llama_server,
        nano,
        context=1000,
        options=ask_server_facts(Program(llama_server)).options,
        threads=1,
        is_tiny=True,
    )


@pytest.mark.real
def test_the_real_server_runs_what_was_asked_for(real_launch, tmp_path):
    with serving_llama(real_launch, log=tmp_path / "log") as served:
        effective = served.effective()
        assert () == served.differences_from_cell(CellSpec(PAIR, 1000))
        port = int(served.command[served.command.index("--port") + 1])
        log_text = served.log.read_text()

    (kv,) = effective.kv
    assert ("q8_0", "q4_0") == (kv.k_type, kv.v_type)
    assert (1024, "enabled") == (
        effective.context,
        effective.flash_attention,
    )
    assert (
        Attention.KERNEL
        is with_attention_place(effective, None, PAIR, is_split=False).attention
    )
    assert "warming up" in log_text  # from there on another deadline counts
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.real
def test_the_real_server_refuses_a_type_that_it_does_not_know(real_launch, tmp_path):
    launch = replace(real_launch, pair=Pair("q9_0", "q4_0"))
    with pytest.raises(Died) as caught, serving_llama(launch, log=tmp_path / "log"):
        pass

    assert "unsupported" == caught.value.status
    assert "Unsupported cache type: q9_0" in str(caught.value)


LINE = (
    "0.00.017.067 I cmn  common_init_: warming up the model with an empty run - "
    "please wait ... (--no-warmup to disable)\n"
)


def test_loading_and_warming_up_have_their_own_time(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("loading model tensors\n")
    loading = LlamaServer(
        launch=fake_launch(),
        client=None,
        command=(),
        log=log,
        child=None,
        load_timeout_s=30.0,
        warmup_timeout_s=50.0,
        memory_bytes=None,
    )

    assert 10.0 == loading.left_s(20.0)
    log.write_text(LINE)
    assert 50.0 == loading.left_s(20.0)
    assert -1.0 == loading.left_s(71.0)
