"""Workers: answers in order, whatever becomes of a worker, and none outlives us."""

import contextlib
import io
import subprocess
import sys
import time

import psutil
import pytest

from codeneedle.corpora import workers
from codeneedle.corpora.worker import Done, Failed, received, send, serve
from codeneedle.corpora.workers import ALONE_BYTES, Alone, Crew, Lost, team
from codeneedle.system import machine

# Jobs are functions that another process can import: those of the library will do.


def children():
    return psutil.Process().children(recursive=True)


def test_answers_come_in_the_order_of_the_items():
    """
    However long each takes, and more items than workers.
    """
    items = [400_000, *range(100)]

    assert [len(range(n)) for n in items] == list(Crew(2).map(len, map(range, items)))
    assert [] == children()


def test_items_are_taken_only_as_they_are_needed():
    """
    What is begun or done before its turn has a bound, so memory has one.
    """
    taken = 0

    def items():
        nonlocal taken
        for at in range(1_000):
            taken += 1
            yield "x" * at

    answers = Crew(2).map(len, items())
    first = next(answers)
    ahead = taken
    answers.close()

    assert 0 == first
    assert ahead <= 2 * workers.AHEAD + 1
    assert [] == children()


def is_alive(process):
    """Whether *process* runs; nobody may have taken note of its end yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ("os.abort()", "its parser ends with SIGABRT"),
        ("os._exit(3)", "its parser ends with exit code 3"),
        ("os.kill(os.getpid(), 9)", "its parser ends with SIGKILL"),
        ("(b'x' * (3 << 30))", "its parser takes more than 2,048 MiB"),
    ],
)
def test_an_item_that_ends_its_worker_is_lost_with_a_reason(job, reason):
    """
    Only that one; the others are answered by a worker that takes the place.
    """
    items = ["1", job.replace("os.", "__import__('os')."), *"234"]
    crew = Crew(2, memory_bytes=2 << 30)

    assert [1, Lost(reason), 2, 3, 4] == list(crew.map(eval, items))
    assert [] == children()


def test_an_item_without_end_is_lost_after_its_time():
    """
    A parser that hangs costs its time, twice, and no more.
    """
    crew = Crew(2, limit_s=0.5)

    assert [0, Lost("its parser takes more than 0.5 s"), 0] == [
        answer or 0 for answer in crew.map(time.sleep, [0, 3_600, 0])
    ]
    assert [] == children()


def test_a_worker_that_a_stranger_ends_is_replaced():
    """
    The item is tried once more before it is given up.
    """
    items = iter(range(5))
    answers = Crew(1).map(abs, items)
    first = next(answers)
    for child in children():
        child.kill()

    assert [0, 1, 2, 3, 4] == [first, *answers]
    assert [] == children()


def test_what_a_job_raises_is_raised_here():
    """
    A programming error keeps its traceback.
    """
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        list(Crew(1).map(eval, ["1 / 0"]))
    assert [] == children()


def test_workers_end_when_we_are_killed(tmp_path):
    """
    In the middle of a job, too.
    """
    code = (
        "import time; from codeneedle.corpora.workers import Crew;"
        "list(Crew(2).map(time.sleep, [3600, 3600]))"
    )
    ours = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    try:
        while len(found := psutil.Process(ours.pid).children()) < 2:
            time.sleep(0.01)
    finally:
        ours.kill()
        ours.wait()

    while any(is_alive(process) for process in found):
        time.sleep(0.01)


def test_workers_import_nothing_from_the_working_folder(tmp_path, monkeypatch):
    """
    A corpus may hold a file that is called like a module.
    """
    (tmp_path / "pickle.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)

    assert [1] == list(Crew(1).map(abs, [-1]))


def test_a_small_corpus_starts_no_process(monkeypatch):
    """
    Starting workers takes longer than the work.
    """
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)

    assert Alone() == team(ALONE_BYTES - 1)
    assert [Crew(2), Crew(4)] == [team(ALONE_BYTES), team(50 * ALONE_BYTES)]
    assert [3, 4] == list(team(0).map(abs, [-3, -4]))


def test_a_machine_with_one_core_works_alone(monkeypatch):
    """
    A second process would only wait for the first.
    """
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)

    assert Alone() == team(50 * ALONE_BYTES)


def test_a_worker_answers_until_its_source_ends():
    """
    The job comes first; half a message is the end, too.
    """
    source, sink = io.BytesIO(), io.BytesIO()
    for message in (len, "abc", 3):
        send(source, message)
    source.write(b"\x05")
    source.seek(0)
    serve(source, sink)
    sink.seek(0)
    done, failed = received(sink), received(sink)

    assert Done(3) == done
    assert isinstance(failed, Failed)
    assert "TypeError" in failed.traceback
    assert not failed.is_memory
    with pytest.raises(EOFError):
        received(sink)


def test_a_message_that_is_cut_short_is_none():
    """
    Its sender is gone.
    """
    pipe = io.BytesIO()
    send(pipe, "x" * 100)

    with pytest.raises(EOFError):
        received(io.BytesIO(pipe.getvalue()[:-1]))


def test_the_program_takes_its_memory_limit_as_an_argument(monkeypatch):
    """
    What takes more is an error of that item, not of the machine.
    """
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_AS)[0])"
    shown = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from codeneedle import worker; worker._limit_memory(1 << 33); {code}",
        ],
        capture_output=True,
        check=True,
    )

    assert 1 << 33 == int(shown.stdout)
