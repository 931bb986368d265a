"""The walk over the cells of a run: order, records, failures, stops."""

import contextlib
import itertools
import threading
from dataclasses import replace

import pytest
from fake_engine import FakeEngine, FakeServer, made_survey, made_weights
from gguf_files import write_gguf
from made_contexts import run_context
from made_metrics import made_probe
from made_records import (
    made_needle,
    made_priming,
    made_record,
    made_round,
    made_setup,
    observed,
)

from codeneedle.cache_types import (
    Pair,
    most_precise_first,
    shuffle_pairs,
    whole_grid,
)
from codeneedle.engines.http import SILENCE_S
from codeneedle.engines.silence_limits import MULTIPLE
from codeneedle.errors import CellError, CodeneedleError, FolderUnusable
from codeneedle.models.weights import load_or_compute_sha256, read_weights_from_headers
from codeneedle.probes.cell import Step
from codeneedle.probes.probe import Calibrating, Question
from codeneedle.probes.recall import probe as recall
from codeneedle.probes.recall.metrics import METRICS
from codeneedle.probes.recall.record import Recall
from codeneedle.records import store as stores
from codeneedle.records.record import (
    AGAIN,
    Attention,
    CacheEvidence,
    Effective,
    Fingerprint,
    Phases,
    Status,
)
from codeneedle.records.store import SWEEP, Store
from codeneedle.scores import ComputesNan
from codeneedle.sweep import runner
from codeneedle.sweep.runner import (
    GIVE_UP_AFTER,
    CellEnded,
    CellQueue,
    CellStarted,
    CellStepped,
    Runner,
)
from codeneedle.sweep.workers import Worker
from codeneedle.system import machine_lock

TYPES = ("q8_0", "q4_0")
PAIRS = shuffle_pairs(whole_grid(TYPES, TYPES), seed=42)
GOOD, BAD = Pair("q8_0", "q8_0"), Pair("q8_0", "q4_0")
NEEDLE = made_needle()
KERNEL = Attention.KERNEL


@pytest.fixture
def store(tmp_path):
    """An empty run folder."""
    return Store(tmp_path)


class Script:
    """A probe that measures as it is told, and remembers what."""

    def __init__(self, outcome=lambda _cell: None, name="recall"):
        self.outcome = outcome
        self.measured = []
        self.probe = made_probe(name, *METRICS, outcome=self.measure, questions=asked)

    def measure(self, cell):
        self.measured.append(cell.pair)
        seen = self.outcome(cell)
        return seen or observation()


def asked(setup, _goal=None):
    """What *setup* asks."""
    return map(Question, setup.probes.get("recall", {}).get("asked", ()))


def observation():
    """What the recall probe stores of one round behind 9,000 tokens."""
    rounds = (made_round(NEEDLE),)
    return observed(Recall(rounds=rounds, priming=made_priming(NEEDLE)))


def made_runner(store, engine=None, setup=None, **changes):
    """A runner of a run in *store*."""
    setup = setup or made_setup(needles=1, types_k=TYPES, types_v=TYPES)
    context = run_context(store.folder, engine, setup=setup)
    return Runner(run=context, store=store, **changes)


def left(store, pairs=PAIRS, **changes):
    """The pairs that a sweep would measure."""
    return list(
        CellQueue(made_runner(store, **changes), Script().probe, pairs).pairs_left
    )


def walk(store, script, *, pairs=PAIRS, engine=None, **changes):
    """The events of a whole sweep."""
    events = []
    made_runner(store, engine, **changes).measure_pairs(
        script.probe, pairs, tell=events.append
    )
    return events


def ended(events):
    """What was told of cells that ended: pair and status."""
    records = [event.record for event in events if isinstance(event, CellEnded)]
    return [(record.pair, record.status.value) for record in records]


@pytest.mark.parametrize(
    ("is_surveyed", "status"), [(True, "unsupported"), (False, "finished")]
)
def test_what_a_survey_refuses_is_measured_on_a_device_that_was_not_asked(
    store, is_surveyed, status
):
    survey = made_survey({PAIRS[0]: "its GPU cannot write it"})
    made = made_runner(store)
    made.run = replace(made.run, survey=survey)
    made.workers = [Worker(engine=FakeEngine(), is_surveyed=is_surveyed)]
    made.measure_pairs(Script().probe, PAIRS[:1])

    assert status == store.read_record_if_there(PAIRS[0], "recall").status


def fails(reason="it broke"):
    """An outcome that is an error."""

    def outcome(_cell):
        raise CellError(reason, hint="Look.", log_excerpt=("a line",))

    return outcome


def test_every_pair_is_measured_once_in_running_order(store):
    script = Script()

    events = walk(store, script)
    assert [] == walk(store, script)

    assert PAIRS == script.measured
    started = [event for event in events if isinstance(event, CellStarted)]
    assert PAIRS == [event.pair for event in started]
    assert [1, 2, 3, 4] == [
        store.read_record_if_there(pair, "recall").position for pair in PAIRS
    ]


def test_a_record_is_on_disk_before_it_is_told(store):
    def tell(event):
        if isinstance(event, CellEnded):
            assert event.record == store.read_record_if_there(
                event.record.pair, "recall"
            )
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_runner(store).measure_pairs(Script().probe, PAIRS, tell=tell)

    assert PAIRS[1:] == left(store)


def test_a_run_is_read_as_that_of_its_folder_while_it_is_measured(store):
    """Commands of its verdict name the folder; its request says whether it decides."""
    text = "decide = true\n"
    (store.folder / SWEEP).write_text(text, encoding="utf-8")

    run = made_runner(store).read_run_and_calibration()

    assert (store.folder, text) == (run.folder, run.sweep)


def test_a_repetition_that_was_asked_otherwise_is_told_when_it_ends(store):
    """Beside the record of the first time."""
    walk(store, Script(), pairs=[GOOD])
    rounds = (replace(made_round(NEEDLE), prompt_sha256="ab" * 32),)
    script, events = Script(lambda _cell: observed(Recall(rounds=rounds))), []
    mine = made_runner(store)
    queue = CellQueue(mine, script.probe, [GOOD], AGAIN)
    mine.measure_cells_of_queue(queue, tell=events.append)

    assert [(GOOD, "mismatched")] == ended(events)


def test_an_interrupted_cell_has_a_record_and_is_measured_again(store):
    def interrupted(_cell):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        walk(store, Script(interrupted))

    assert Status.INTERRUPTED is store.read_record_if_there(PAIRS[0], "recall").status
    assert PAIRS == left(store)


def test_a_failed_cell_is_a_record_and_measured_again_only_if_wished(store):
    script = Script(lambda cell: fails()(cell) if cell.pair == PAIRS[1] else None)
    walk(store, script)

    record = store.read_record_if_there(PAIRS[1], "recall")
    assert (Status.CRASHED, "it broke", ("a line",)) == (
        record.status,
        record.reason,
        record.log_excerpt,
    )
    assert PAIRS == script.measured
    assert [] == left(store)
    assert [PAIRS[1]] == left(store, retry_failed=True)
    walk(store, script, retry_failed=True)
    assert [*PAIRS, PAIRS[1]] == script.measured


def test_cells_that_fail_alike_from_the_start_end_the_sweep(store, golden):
    script = Script(fails())

    with pytest.raises(CodeneedleError) as caught:
        walk(store, script)
    assert PAIRS[:3] == script.measured
    assert golden == (str(caught.value), caught.value.hint)

    walk(store, Script(), pairs=PAIRS[:1], retry_failed=True)
    walk(store, script, retry_failed=True)
    assert [*PAIRS[:3], *PAIRS[1:]] == script.measured


def test_failures_that_differ_by_a_port_or_a_time_are_alike(store, golden):
    """An evaluation that crashed at once once crashed in every cell."""
    ports = itertools.count(40001)

    def crashes(_cell):
        reason = f"--eval ended with exit code 1: 127.0.0.1:{next(ports)}"
        raise CellError(reason, hint="Look.")

    with pytest.raises(CodeneedleError) as caught:
        walk(store, Script(crashes))
    assert golden == str(caught.value)


def nothing_right(cell):
    """What recall stores where all lines are wrong, with all pairs but one."""
    needle = replace(NEEDLE, lines=("another",) * 20)
    rounds = (made_round(NEEDLE if cell.pair == BAD else needle),)
    return observed(Recall(rounds=rounds, priming=made_priming(NEEDLE)))


@pytest.mark.parametrize("tries", [True, False])
def test_a_reference_that_has_nothing_to_lose_ends_a_sweep_that_tries_it(store, tries):
    pairs = sorted(PAIRS, key=lambda pair: pair != GOOD)
    script = Script(nothing_right)
    refusal = pytest.raises(CodeneedleError, match=r"0% right with q8_0/q8_0, so .* 3")

    for _ in range(2):
        with refusal if tries else contextlib.nullcontext():
            walk(store, script, pairs=pairs, tries_reference=tries)

    assert pairs[: 1 if tries else 4] == script.measured
    assert store.read_record_if_there(GOOD, "recall").has_numbers


def test_a_reference_that_has_something_to_lose_ends_nothing(store):
    pairs = sorted(PAIRS, key=lambda pair: pair != BAD)
    walk(store, script := Script(nothing_right), pairs=pairs[:1], tries_reference=True)
    walk(store, Script(), tries_reference=True)

    assert [BAD] == script.measured
    assert [] == left(store)


def patient(store, *, seen_s, attention):
    """
    The limits of silence that cells got, by pair.

    Args:
        store: Of the run.
        seen_s: How long each server was silent.
        attention: Where that of a pair ran.
    """
    limits = {}

    def outcome(cell):
        cell.effective = Effective(attention=attention[cell.pair])
        with cell.limit_and_record_silence() as limited:
            limits[cell.pair] = limited.limit_and_cause(SILENCE_S)[0]
            limited.longest_s = seen_s

    walk(store, Script(outcome), retry_failed=True)
    return limits


def test_a_cell_waits_as_long_as_others_let_expect(store):
    limits = patient(store, seen_s=10.0, attention=dict.fromkeys(PAIRS, KERNEL))

    assert [SILENCE_S, *[10 * MULTIPLE] * 3] == [limits[pair] for pair in PAIRS]
    assert 10.0 == store.read_record_if_there(PAIRS[0], "recall").silence_s


@pytest.mark.parametrize("slow", [Attention.CPU, Attention.CONVERTED, None])
def test_a_pair_that_has_no_kernel_is_not_hurried_by_those_that_have_one(store, slow):
    where = {pair: slow if at % 2 else KERNEL for at, pair in enumerate(PAIRS)}
    limits = patient(store, seen_s=10.0, attention=where)
    fourth_s = SILENCE_S if slow is None else 10 * MULTIPLE

    assert [SILENCE_S, SILENCE_S, 10 * MULTIPLE, fourth_s] == [*limits.values()]


def test_a_cell_that_took_too_long_gets_all_the_time_that_there_is(store):
    where = dict.fromkeys(PAIRS, KERNEL)
    patient(store, seen_s=10.0, attention=where)
    record = store.read_record_if_there(PAIRS[2], "recall")
    store.write_record(replace(record, status=Status.TIMED_OUT, observation=None))

    assert {PAIRS[2]: SILENCE_S} == patient(store, seen_s=10.0, attention=where)


def test_cells_that_fail_in_different_ways_do_not_end_it(store):
    script = Script(lambda cell: fails(reason=str(cell.pair))(cell))

    walk(store, script)

    assert PAIRS == script.measured


def test_the_current_cell_ends_before_a_sweep_that_is_asked_to_stop(store):
    script = Script()

    walk(store, script, asked_to_stop=lambda: bool(script.measured))

    assert PAIRS[:1] == script.measured


def test_a_sweep_that_waits_for_another_one_ends_at_the_first_ctrl_c(
    store, tmp_path, monkeypatch, golden
):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))
    script, steps, asked = Script(), [], []
    timed = replace(script.probe, is_timed=True)

    def tell(event):
        if isinstance(event, CellStepped):
            steps.append(event.step.what)
            asked.append(True)

    mine = made_runner(store, asked_to_stop=lambda: bool(asked))
    with machine_lock.occupying_machine("a/b", exclusive=False, waiting=None):
        mine.measure_pairs(timed, PAIRS, tell=tell)

    assert [] == script.measured
    assert golden == steps


def test_a_sweep_that_must_not_wait_measures_beside_another_one(
    store, tmp_path, monkeypatch
):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))
    script = Script()
    mine = made_runner(store, may_wait=False)

    with machine_lock.occupying_machine("a/b", exclusive=False, waiting=None):
        mine.measure_pairs(replace(script.probe, is_timed=True), PAIRS)

    assert PAIRS == script.measured


def test_a_failure_on_a_full_disk_is_not_the_cell_s(store, leave_free):
    """What is missing in a log may have had no room: the cell is measured again."""
    leave_free((1 << 20) - 1)

    with pytest.raises(FolderUnusable, match=r"only 1\.0 MiB is"):
        walk(store, Script(fails()))
    assert [] == list(store.read_records())
    walk(store, Script())

    assert 4 == len(list(store.read_records()))


def test_a_failure_where_a_mebibyte_is_free_is_the_cell_s(store, leave_free):
    leave_free(1 << 20)

    walk(store, Script(lambda cell: fails()(cell) if cell.pair == PAIRS[1] else None))

    assert 4 == len(list(store.read_records()))


def test_weights_that_are_replaced_meanwhile_end_the_sweep(store, tmp_path):
    weights = made_weights(path=tmp_path / "w.gguf", identity="as it was")
    (tmp_path / "w.gguf").write_bytes(b"GGUF other")
    made = made_runner(store)
    made.run = replace(made.run, weights=weights)

    with pytest.raises(CodeneedleError, match="replaced"):
        made.measure_pairs(Script().probe, PAIRS)

    assert [] == list(store.read_records())


def test_answers_of_weights_that_are_replaced_meanwhile_are_not_kept(store, tmp_path):
    path = write_gguf(tmp_path / "w.gguf")
    found = read_weights_from_headers(path)
    made = made_runner(store)
    facts = replace(made.run.setup.weights, sha256=load_or_compute_sha256(found))
    setup = replace(made.run.setup, weights=facts)
    made.run = replace(made.run, weights=found, setup=setup)

    def outcome(cell):
        write_gguf(path, tensors=2)
        cell.store_observation_so_far({"answers": ["of either file"]})

    with pytest.raises(CodeneedleError, match="other weights than"):
        made.measure_pairs(Script(outcome).probe, PAIRS)

    assert [] == list(store.read_records())


def test_weights_that_are_touched_are_hashed_with_progress_and_ctrl_c_ends_it(
    store, tmp_path, golden
):
    path = write_gguf(tmp_path / "w.gguf")
    found = read_weights_from_headers(path)
    setup = made_setup(needles=1, types_k=TYPES, types_v=TYPES)
    facts = replace(setup.weights, sha256=load_or_compute_sha256(found))
    path.chmod(0o600)
    made = made_runner(store)
    setup = replace(setup, weights=facts)
    made.run = replace(made.run, weights=found, setup=setup)
    told = []

    def interrupted(event):
        told.append(event)
        if isinstance(event, CellStepped):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.measure_pairs(Script().probe, PAIRS[:1], tell=interrupted)
    made.measure_pairs(Script().probe, PAIRS[:1])

    hashing = told[1].step.what
    assert CellStepped(PAIRS[0], Step(0, 1, hashing)) == told[1]
    assert golden == hashing
    assert [Status.FINISHED] == [record.status for record in store.read_records()]


def test_steps_are_told_with_the_pair(store):
    events = walk(store, Script(lambda cell: cell.report_step(1, 3, "reading")))

    assert CellStepped(PAIRS[0], Step(1, 3, "reading")) == events[1]


def test_what_a_cell_sets_for_all_is_in_the_setup_of_the_next_ones(store):
    store.check_and_store_setup(made_setup(needles=1, types_k=TYPES, types_v=TYPES))
    seen = []

    def outcome(cell):
        seen.append(dict(cell.run.setup.calibrated))
        if len(seen) == 1:
            cell.calibrate({"by": str(cell.pair)})

    walk(store, Script(outcome))

    kept = {"recall": {"by": str(PAIRS[0])}}
    assert [{}, kept, kept, kept] == seen
    assert kept == Store(store.folder).read_setup().calibrated


# The recall probe on a server that differs, or holds memory


def recall_record(store, engine, **changes):
    """The record of one cell of the recall probe on *engine*."""
    made_runner(store, engine, **changes).measure_pairs(recall.PROBE, [BAD])
    return store.read_record_if_there(BAD, "recall")


def test_attention_that_is_told_at_the_first_token_is_in_the_record(store):
    engine = FakeEngine(attention=Attention.CONVERTED)
    engine.server = FakeServer(engine)

    record = recall_record(store, engine)

    assert (Status.FINISHED, Attention.CONVERTED) == (record.status, record.attention)


def test_a_server_that_differs_from_what_was_asked_is_not_measured(store, golden):
    runs = Effective(context=512)
    engine = FakeEngine(differences=("K is f16, not q8_0",), effective=runs)
    engine.server = FakeServer(engine)

    record = recall_record(store, engine)

    assert Status.MISMATCHED is record.status
    assert golden == record.reason
    assert [] == engine.server.questions
    assert runs == record.effective


def test_what_a_server_holds_is_asked_while_it_lives(store):
    engine = FakeEngine()
    engine.server = FakeServer(engine, holds_bytes=5 << 20)

    record = recall_record(store, engine)

    assert (5 << 20, 7 << 20) == (record.device_bytes, record.peak_rss_bytes)
    assert [True] == engine.alive_at_device_query


# What the numbers of other cells show


@pytest.mark.parametrize(
    ("sweeps", "told"),
    [
        ([[GOOD, BAD]], [(GOOD, None), (BAD, "cpu")]),
        ([[BAD, GOOD]], [(BAD, None), (GOOD, None), (BAD, "cpu")]),
        ([[BAD], [GOOD]], [(GOOD, None), (BAD, "cpu")]),
    ],
    ids=["at once", "later", "in the next sweep"],
)
def test_attention_on_the_cpu_beside_others_is_told_and_stored_as_observed(
    store, sweeps, told
):
    def outcome(cell):
        parts = 30 if cell.pair == BAD else 2
        cell.effective = Effective(graph_splits=parts, devices=("CUDA0",))

    script, gpu = Script(outcome), FakeEngine(devices=("CUDA0 NVIDIA L4",))

    for pairs in sweeps:
        events = walk(store, script, pairs=pairs, engine=gpu)

    finished = [each.record for each in events if isinstance(each, CellEnded)]
    assert told == [(each.pair, each.attention) for each in finished]
    stored = store.read_record_if_there(BAD, "recall")
    assert (Status.FINISHED, None) == (stored.status, stored.attention)
    assert observation() == stored.observation
    (found,) = (
        r
        for r in made_runner(store).read_run_and_calibration().records
        if r.pair == BAD
    )
    assert "30 graph splits, 2 for q8_0/q8_0" == found.effective.attention_evidence


def test_a_cell_is_verified_once_the_reference_is_there(store):
    def outcome(cell):
        print_ = Fingerprint(text=str(cell.pair), logprobs=())
        cell.effective = Effective(
            cache_evidence=CacheEvidence(fingerprints=(print_, print_))
        )

    reference, *others = GOOD, *(pair for pair in PAIRS if pair != GOOD)
    events = walk(store, Script(outcome), pairs=[*others, reference])

    first, last = ended(events)[:3], dict(ended(events))
    assert {"unverified"} == {status for _, status in first}
    assert {"finished"} == set(last.values())
    stored = [store.read_record_if_there(pair, "recall") for pair in PAIRS]
    assert {(Status.FINISHED, "")} == {(each.status, each.reason) for each in stored}


# --- answers that are kept


class Killed(BaseException):
    """What ends a process at once: nothing of ours runs after it."""


def answering(answers, error=None):
    """
    A probe's outcome: it keeps one answer after the other, behind those it is given.

    *error* ends it before the last one.
    """

    def outcome(cell):
        previous = (
            cell.previous_record.observation["answers"] if cell.previous_record else []
        )
        new = [each for each in answers if each not in previous]
        for at, answer in enumerate(new, start=1):
            if error and at == len(new):
                raise error
            previous = [*previous, answer]
            cell.store_observation_so_far({"answers": previous})
        return {"answers": previous}

    return outcome


def broken(status):
    """What a cell may end with."""
    return CellError("it broke", hint="Look.", status=status)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), Status.INTERRUPTED),
        (Killed(), Status.INTERRUPTED),
        (broken(Status.CRASHED), Status.CRASHED),
        (broken(Status.TIMED_OUT), Status.TIMED_OUT),
        (broken(Status.OUT_OF_MEMORY), Status.OUT_OF_MEMORY),
    ],
    ids=["stopped", "killed", "crashed", "timed out", "out of memory"],
)
def test_a_cell_that_ends_early_keeps_its_answers_and_goes_on_from_them(
    store, error, status
):
    with contextlib.suppress(KeyboardInterrupt, Killed):
        walk(store, Script(answering("abc", error)), pairs=PAIRS[:2])
    early = store.read_record_if_there(PAIRS[0], "recall")
    is_failure = status is not Status.INTERRUPTED

    assert (status, {"answers": ["a", "b"]}) == (early.status, early.observation)
    assert not early.has_numbers
    is_left = PAIRS[0] in left(store)
    assert is_left is not is_failure

    given = []

    def outcome(cell):
        given.append(cell.previous_record)
        return answering("abc")(cell)

    # The same cell, in another running order.
    pairs = PAIRS[1::-1]
    walk(store, Script(outcome), pairs=pairs, retry_failed=is_failure)

    late = store.read_record_if_there(PAIRS[0], "recall")
    assert early in given
    assert (Status.FINISHED, "") == (late.status, late.reason)
    assert {"answers": ["a", "b", "c"]} == late.observation
    assert (early.position, early.started) == (late.position, late.started)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), broken(Status.CRASHED)], ids=["stopped", "crashed"]
)
def test_answers_stay_where_the_next_server_gives_none(store, error):
    def failing(_cell):
        raise error

    for outcome in (answering("abc", Killed()), failing):
        with contextlib.suppress(KeyboardInterrupt, Killed):
            walk(store, Script(outcome), pairs=PAIRS[:1])
    assert {"answers": ["a", "b"]} == store.read_record_if_there(
        PAIRS[0], "recall"
    ).observation

    script = Script(answering("abc"))
    walk(store, script, pairs=PAIRS[:1], retry_failed=True)

    found = store.read_record_if_there(PAIRS[0], "recall")
    assert {"answers": ["a", "b", "c"]} == found.observation


def test_a_cell_that_turns_out_to_compute_nan_has_no_numbers_any_more(store):
    """A check found it, or further questions: what was measured before is of chance."""
    walk(store, Script(answering("ab")), pairs=PAIRS[:1])

    script = Script(answering("abcd", ComputesNan(token=7)))
    made_runner(store).measure_further_units(script.probe, PAIRS[0], 64)

    found = store.read_record_if_there(PAIRS[0], "recall")
    assert found.computes_nan
    assert (Status.UNSUPPORTED, None) == (found.status, found.observation)


def test_pairs_that_compute_nan_do_not_end_a_sweep(store):
    """They are findings, however many come first."""

    def outcome(cell):
        if cell.pair != PAIRS[-1]:
            raise ComputesNan(token=7)
        return answering("ab")(cell)

    walk(store, Script(outcome), pairs=PAIRS)

    assert len(PAIRS) > GIVE_UP_AFTER
    assert 1 == sum(record.has_numbers for record in store.read_records("recall"))


def test_each_answer_is_on_disk_before_the_next_question(store):
    def outcome(cell):
        for answers in (["a"], ["a", "b"]):
            cell.store_observation_so_far({"answers": answers})
            found = Store(store.folder).read_record_if_there(cell.pair, "recall")
            assert {"answers": answers} == found.observation
            assert Status.INTERRUPTED is found.status
            # It may be killed at any time: a report that looks now knows no more.
            assert "being measured" in found.reason

    walk(store, Script(outcome), pairs=PAIRS[:1])


def test_an_answer_costs_a_write_and_no_look_at_what_is_stored(store, monkeypatch):
    store.check_and_store_setup(made_setup(needles=1, types_k=TYPES, types_v=TYPES))
    done = []

    def counting(what, function):
        def counted(*values, **named):
            done.append(what)
            return function(*values, **named)

        return counted

    for name in ("read_regular", "write_atomically"):
        counted = counting(name, getattr(stores, name))
        monkeypatch.setattr(f"codeneedle.records.store.{name}", counted)

    def outcome(cell):
        done.clear()
        cell.store_observation_so_far({"answers": ["a"]})
        first = [*done]
        cell.store_observation_so_far({"answers": ["a", "b"]})
        assert [*first, "write_atomically"] == done
        done.clear()
        return {"answers": ["a", "b"]}

    made = made_runner(store)
    queue = CellQueue(made, Script(outcome).probe, PAIRS[:1])
    made.measure_cells_of_queue(queue)

    assert ["write_atomically"] == done


def test_the_time_of_all_servers_of_a_cell_is_counted(store):
    def measured(seconds, error=None):
        def outcome(cell):
            result = answering("ab", error)(cell)
            cell.phases = Phases(ready_s=1.0, measure_s=seconds)
            return result

        return outcome

    def interrupted(cell):
        cell.phases = Phases(ready_s=1.0, measure_s=2.0)
        measured(0, KeyboardInterrupt())(cell)

    with pytest.raises(KeyboardInterrupt):
        walk(store, Script(interrupted), pairs=PAIRS[:1])
    walk(store, Script(measured(3.0)), pairs=PAIRS[:1])

    phases = store.read_record_if_there(PAIRS[0], "recall").phases
    assert (2.0, 5.0) == (phases.ready_s, phases.measure_s)


@pytest.mark.parametrize(
    "status",
    [Status.UNSUPPORTED, Status.MISMATCHED],
)
def test_a_cell_that_did_not_run_what_was_asked_is_measured_anew(store, status):
    def fallen_back(cell):
        cell.store_observation_so_far({"answers": ["of another cache"]})
        raise broken(status)

    walk(store, Script(fallen_back), pairs=PAIRS[:1])
    assert status is store.read_record_if_there(PAIRS[0], "recall").status
    walk(store, Script(answering("ab")), pairs=PAIRS[:1], retry_failed=True)

    found = store.read_record_if_there(PAIRS[0], "recall")
    assert (Status.FINISHED, {"answers": ["a", "b"]}) == (
        found.status,
        found.observation,
    )


def test_a_probe_that_keeps_nothing_begins_anew(store):
    given = []

    def outcome(cell):
        given.append(cell.previous_record)
        fails()(cell)

    for _ in range(2):
        walk(store, Script(outcome), pairs=PAIRS[:1], retry_failed=True)

    assert [None, None] == given


def test_crashes_alike_end_a_sweep_whatever_was_answered_before_them(store, golden):
    """Three pairs that crash at their last answer are no three results."""
    script = Script(answering("ab", broken(Status.CRASHED)))

    with pytest.raises(CodeneedleError) as caught:
        walk(store, script)
    assert golden == str(caught.value)


# --- further questions


def test_a_pair_with_numbers_is_asked_for_more(store):
    walk(store, Script(answering("ab")), pairs=[BAD, GOOD])
    before, given, told = store.read_record_if_there(GOOD, "recall"), [], []

    def outcome(cell):
        given.append((cell.previous_record, cell.goal))
        return answering("abcd")(cell)

    script = Script(outcome)
    record = made_runner(store).measure_further_units(
        script.probe, GOOD, 64, tell=told.append
    )

    assert [(before, 64)] == given
    assert record == store.read_record_if_there(GOOD, "recall")
    assert {"answers": [*"abcd"]} == record.observation
    assert (before.position, before.started) == (record.position, record.started)
    assert [CellStarted(GOOD), CellEnded(record)] == told
    assert [] == walk(store, script, pairs=[BAD, GOOD])


def test_memory_that_was_told_stays_where_more_is_asked_and_nothing_told(store):
    """Lines may be read by a tool then, of which no memory is known."""
    known = {
        "peak_rss_bytes": 7 << 20,
        "device_bytes": 5 << 20,
        "device_peak_bytes": 6 << 20,
        "silence_s": 1.5,
    }

    def telling(cell):
        for name, value in known.items():
            setattr(cell, name, value)
        return answering("ab")(cell)

    walk(store, Script(telling), pairs=[BAD, GOOD])
    further = Script(answering("abcd"))
    record = made_runner(store).measure_further_units(further.probe, GOOD, 64)

    assert {"answers": [*"abcd"]} == record.observation
    assert known == {name: getattr(record, name) for name in known}


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (KeyboardInterrupt(), "abc"),
        (Killed(), "abc"),
        (broken(Status.CRASHED), "abc"),
        (broken(Status.MISMATCHED), "abc"),
    ],
    ids=["stopped", "killed", "crashed", "mismatched"],
)
def test_numbers_stay_whatever_ends_their_next_questions(store, error, kept):
    walk(store, Script(answering("ab")), pairs=PAIRS[:2])
    told = []

    with contextlib.suppress(KeyboardInterrupt, Killed):
        made = made_runner(store).measure_further_units(
            Script(answering("abcd", error)).probe, PAIRS[0], 64, tell=told.append
        )
        assert error.status == made.status
    found = store.read_record_if_there(PAIRS[0], "recall")

    assert (Status.FINISHED, "") == (found.status, found.reason)
    assert {"answers": [*kept]} == found.observation
    assert isinstance(error, Killed) or CellEnded(found) == told[-1]


def test_numbers_stay_where_no_further_answer_came(store):
    walk(store, Script(answering("ab")), pairs=PAIRS[:2])
    before = store.read_record_if_there(PAIRS[0], "recall")

    made = made_runner(store).measure_further_units(Script(fails()).probe, PAIRS[0], 64)

    assert Status.CRASHED is made.status
    assert before == store.read_record_if_there(PAIRS[0], "recall")


# --- several workers, several processes


def workers(number=2):
    """So many workers on engines of their own."""
    return [Worker(engine=FakeEngine(), device=f"GPU {n}") for n in range(number)]


def test_several_workers_measure_each_cell_once_side_by_side(store):
    together, told = threading.Barrier(2, timeout=60), []
    script = Script(lambda _cell: together.wait() and None)

    def tell(event):
        told.append((event, threading.current_thread()))

    made_runner(store, workers=workers()).measure_pairs(script.probe, PAIRS, tell=tell)

    assert sorted(PAIRS) == sorted(script.measured)
    assert {threading.main_thread()} == {thread for _, thread in told}
    assert 4 == len(ended([event for event, _ in told]))
    devices = {store.read_record_if_there(pair, "recall").device for pair in PAIRS}
    assert {"GPU 0", "GPU 1"} == devices


def setting(seen):
    """An outcome that sets what holds for all, unless that is known; notes who has."""

    def outcome(cell):
        known = cell.run.setup.calibrated.get("recall", {})
        seen.append((cell.pair, known.get("by")))
        if not known:
            cell.calibrate({"by": str(cell.pair)})

    return outcome


def test_the_cell_that_decides_for_others_is_measured_first_and_alone(store):
    """If it fails, the most precise of the others decides, wherever it stands."""
    seen = []
    precise = most_precise_first(PAIRS)
    pairs = [precise[0], *precise[2:], precise[1]]

    def outcome(cell):
        if cell.pair == precise[0]:
            seen.append((cell.pair, None))
            fails()(cell)
        setting(seen)(cell)

    script = Script(outcome)
    probe = replace(script.probe, calibrating=Calibrating())
    made_runner(store, workers=workers(3)).measure_pairs(probe, pairs)

    assert [(pair, None) for pair in precise[:2]] == seen[:2]
    assert {str(precise[1])} == {by for _, by in seen[2:]}
    assert {*precise[2:]} == {pair for pair, _ in seen[2:]}


@pytest.mark.parametrize("status", [Status.INTERRUPTED, Status.FINISHED])
def test_a_cell_that_was_stopped_behind_what_it_set_goes_on_alone(store, status):
    store.check_and_store_setup(made_setup(needles=1, types_k=TYPES, types_v=TYPES))
    store.store_calibration("recall", {"by": str(PAIRS[0])})
    store.write_record(
        replace(made_record(PAIRS[0], [made_round(NEEDLE)]), status=status)
    )
    probe = replace(Script().probe, calibrating=Calibrating())
    made = made_runner(store)
    made.add_calibration(store.read_calibrations())

    assert (status is Status.INTERRUPTED) == runner.CellQueue(
        made, probe, PAIRS
    ).needs_calibration()


def test_times_are_taken_by_one_worker_that_has_the_machine(store):
    alone = Worker(engine=FakeEngine(), device="GPU 0, all cores")
    script = Script(lambda _cell: threads.append(threading.current_thread()))
    threads = []
    probe = replace(script.probe, is_timed=True)

    made_runner(store, workers=workers(), timing_worker=alone).measure_pairs(
        probe, PAIRS
    )

    assert {threading.main_thread()} == set(threads)
    assert PAIRS == script.measured
    assert alone.device == store.read_record_if_there(PAIRS[0], "recall").device


def test_an_interruption_ends_all_cells_and_their_records_say_so(store):
    together = threading.Barrier(2, timeout=60)

    def outcome(cell):
        together.wait()
        while True:
            cell.report_step(1, 2, "on and on")

    def tell(event):
        if isinstance(event, CellStepped):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_runner(store, workers=workers()).measure_pairs(
            Script(outcome).probe, PAIRS, tell=tell
        )

    found = [store.read_record_if_there(pair, "recall") for pair in PAIRS]
    assert [Status.INTERRUPTED] * 2 == [record.status for record in found if record]
    assert PAIRS == left(store)


def test_an_error_of_one_worker_comes_up_when_the_others_are_through(store):
    together, failing = threading.Barrier(2, timeout=60), []

    def outcome(cell):
        if cell.pair == PAIRS[0]:
            failing.append(threading.current_thread())
            together.wait()
            raise FolderUnusable(folder=store.folder, reason="it is gone")
        together.wait()
        failing[0].join()

    script = Script(outcome)
    with pytest.raises(FolderUnusable, match="it is gone"):
        made_runner(store, workers=workers()).measure_pairs(script.probe, PAIRS)

    assert 2 == len(script.measured)
    assert store.read_record_if_there(PAIRS[1], "recall").has_numbers
