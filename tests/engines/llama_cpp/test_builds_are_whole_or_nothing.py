"""Building llama.cpp: complete or not at all, with stand-ins for its programs."""

import fcntl
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from build_programs import PROGRAMS, BuildPrograms, dest, pack
from programs import script

from codeneedle.engines.llama_cpp import backends, installation, release
from codeneedle.engines.llama_cpp import build as building
from codeneedle.engines.llama_cpp.build import build_tool_environment, unpack_llama_cpp
from codeneedle.errors import FolderUnusable, ToolFailed, ToolMissing, UnknownName
from codeneedle.system import processes

pytestmark = pytest.mark.slow

LOG = "b11434-4.compiling.log"


def names(folder):
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(backends, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(building, "POLL_S", 0.01)
    return BuildPrograms(tmp_path)


def test_a_build_leaves_the_programs_the_licence_and_a_note(world):
    folder = world.build()
    note = json.loads((folder / "build.json").read_text())

    assert sorted([*PROGRAMS, "LICENSE", "build.json"]) == sorted(names(folder))
    assert ["b11434-4"] == world.left_behind
    assert 11434 == note["build"]
    assert world.archive.exists()
    assert (
        hashlib.sha256(world.archive.read_bytes()).hexdigest()
        == (note["archive_sha256"])
    )
    found = installation.locate_tools(llama_server=None)
    assert folder / "llama-server" == found.server.path


def test_the_programs_of_a_numbered_release_are_built_without_amx(world):
    """AMX code ends with SIGILL on some processors; there is no git checkout to ask."""
    world.build()
    configured = (world.folder / "cmake.said").read_text()
    compiled = (world.folder / "ninja.said").read_text().split()
    digest = hashlib.sha256(world.archive.read_bytes()).hexdigest()

    assert "-DLLAMA_BUILD_NUMBER=11434" in configured
    assert f"-DLLAMA_BUILD_COMMIT={digest[:9]}" in configured
    assert "-DCMAKE_BUILD_TYPE=Release" in configured
    assert "-DCMAKE_C_FLAGS=-U__AMX_INT8__" in configured
    assert "-DCMAKE_CXX_FLAGS=-U__AMX_INT8__" in configured
    assert "CUDA" not in configured
    jobs, *programs = compiled[2:]
    assert re.fullmatch(r"-j[1-9]\d*", jobs)
    assert [*PROGRAMS[:-1], "llama-app"] == programs


def test_cuda_is_switched_on_where_compiler_and_gpu_are(world, monkeypatch):
    nvcc = script(world.bin / "nvcc", "")
    assert backends.cuda_compiler_if_gpu() is None

    monkeypatch.setattr(backends, "has_nvidia_gpu", lambda: True)
    world.build()
    said = (world.folder / "cmake.said").read_text()

    assert "-DGGML_CUDA=ON" in said
    assert "-DGGML_CUDA_FA_QUANTS=all" in said
    assert f"-DCMAKE_CUDA_COMPILER={nvcc}" in said


@pytest.mark.parametrize(
    ("name", "program", "option"),
    [
        ("cuda", "nvcc", "-DGGML_CUDA_FA_QUANTS=all"),
        ("hip", "hipconfig", "-DGGML_CUDA_FA_QUANTS=all"),
        ("vulkan", "glslc", "-DGGML_VULKAN=ON"),
        ("sycl", "icpx", "-DCMAKE_C_COMPILER=icx"),
    ],
)
def test_a_backend_is_built_in_a_folder_of_its_own(name, program, option, world):
    """And is left alone where none is asked for."""
    script(world.bin / program, "echo /opt/compilers")
    folder = world.build(backend=backends.backend_named(name))

    assert f"b11434-4-{name}" == folder.name
    assert option in (world.folder / "cmake.said").read_text().split()
    with pytest.raises(ToolMissing, match="was not found"):
        installation.locate_tools()


@pytest.mark.parametrize("name", ["cuda", "hip", "vulkan", "sycl"])
def test_a_backend_whose_compiler_is_missing_is_refused_by_name(
    name, world, monkeypatch
):
    monkeypatch.setattr(backends.shutil, "which", lambda name: None)

    backend = backends.backend_named(name)
    with pytest.raises(ToolMissing, match=f"{backend.needs} is missing") as caught:
        backends.backend_cmake_options(backend)
    assert backend.install in caught.value.hint


def test_metal_is_for_macs_and_the_cpu_alone_switches_it_off(monkeypatch):
    metal, cpu = map(backends.backend_named, ("metal", "cpu"))
    monkeypatch.setattr(backends.sys, "platform", "linux")
    with pytest.raises(ToolMissing, match="on Macs alone"):
        backends.backend_cmake_options(metal)
    monkeypatch.setattr(backends.sys, "platform", "darwin")

    assert ["-DGGML_METAL=ON"] == backends.backend_cmake_options(metal)
    assert ["-DGGML_METAL=OFF"] == backends.backend_cmake_options(cpu)


def test_an_unknown_backend_is_answered_by_the_nearest_known_one():
    with pytest.raises(UnknownName, match="unknown backend 'vulcan'") as caught:
        backends.backend_named("vulcan")
    assert "vulkan" in caught.value.hint


def test_patched_sources_are_built_beside_the_others(world, tmp_path):
    patch = tmp_path / "a.patch"
    text = "--- a/LICENSE\n+++ b/LICENSE\n@@ -1 +1 @@\n"
    gone, new = "-text\n\\ No newline at end of file\n", "+rule\n"
    patch.write_text(text + gone + new)
    folder = world.build(patches=[patch])

    assert folder != release.built_folder()
    assert "rule\n" == (folder / "LICENSE").read_text()


def test_a_build_is_done_once(world):
    first = world.build()
    script(world.bin / "pip", "exit 1")

    assert first == world.build()


def test_progress_is_read_from_the_log(world):
    world.build()
    phases = list(dict.fromkeys(phase for phase, _, _ in world.progress))
    compiling = [steps for phase, *steps in world.progress if phase == "compiling"]

    assert ["downloading", "unpacking", "configuring", "compiling", "checking"] == (
        phases
    )
    assert [216, 216] == compiling[-1]


def test_a_page_of_warnings_does_not_set_progress_back(world):
    seen = world.folder / "seen"
    noise = "i=0; while [ $i -lt 900 ]; do echo warning: something unused; i=$((i+1))"
    world.ninja(
        end=f"while [ ! -e {seen} ]; do sleep 0.01; done; {noise}; done; sleep 0.1"
    )

    world.build(react=lambda done: done and seen.touch())
    done = [done for phase, done, _ in world.progress if phase == "compiling"]

    assert sorted(done) == done


def test_an_archive_of_another_hash_is_not_unpacked(world):
    with pytest.raises(ToolFailed, match="archive of SHA-256"):
        world.build(sha256="0" * 64)

    assert not (world.folder / "cmake.said").exists()
    assert [] == world.left_behind


@pytest.mark.parametrize(
    "words", ["DO NOT MATCH THE HASHES:\n Got   abc", "No matching distribution"]
)
def test_what_pip_refuses_is_shown_in_its_words(world, words):
    script(world.bin / "pip", f"echo 'ERROR: {words}'; exit 1")

    with pytest.raises(ToolFailed) as caught:
        world.build()

    assert all(line.strip() in str(caught.value) for line in words.split("\n"))
    assert "network" in caught.value.hint
    assert "mirror" in caught.value.hint
    assert ["b11434-4.downloading.log"] == world.left_behind


def test_a_compiler_that_does_not_take_the_quick_way_is_asked_plainly(world):
    """All that the build may not do on another compiler is in one file of cmake."""
    said = world.folder / "cmake.said"
    world.ninja(end=f"! grep -q quick.cmake {said} || exit 1")
    folder = world.build()

    assert "-DCMAKE_PROJECT_llama.cpp_INCLUDE= " in f"{said.read_text().strip()} "
    asked = (world.folder / "ninja.said").read_text().split()
    assert ["b11434-4"] == world.left_behind
    assert [*PROGRAMS[:-1]] == asked[3:]
    assert (folder / "llama-server").exists()


def test_what_does_no_arithmetic_is_compiled_quickly(world):
    world.build()
    configured = (world.folder / "cmake.said").read_text().strip()
    file = Path(configured.partition("llama.cpp_INCLUDE=")[2])

    assert "target_compile_options" in file.read_text()
    for library in ("ggml", "llama "):
        assert library not in "".join(
            line for line in file.read_text().splitlines() if line[:1] != "#"
        )


def test_a_compiler_error_is_shown_and_its_log_kept(world):
    world.ninja(end="echo 'a.c:1: error: no such thing'; exit 1")

    with pytest.raises(ToolFailed, match="no such thing") as caught:
        world.build()

    log = release.built_folder().parent / LOG
    assert str(log) in caught.value.hint
    assert "a.c:1: error" in log.read_text()
    assert [LOG] == world.left_behind


@pytest.mark.parametrize(
    ("ninja", "words"),
    [
        ({"answer": "version: 0.6.0 (build 0, commit unknown)"}, "build 0"),
        ({"end": "exit 0"}, "made no llama-server"),
    ],
)
def test_a_server_of_another_number_or_none_is_not_kept(world, ninja, words):
    world.ninja(**ninja)

    with pytest.raises(ToolFailed, match=words):
        world.build()

    assert [] == [name for name in world.left_behind if name != LOG]


def test_an_interrupted_build_leaves_nothing(world):
    def interrupt(done):
        if done:
            raise KeyboardInterrupt

    world.ninja(end=f"echo $$ > {world.folder}/pid; exec sleep 600")
    with pytest.raises(KeyboardInterrupt):
        world.build(react=interrupt)

    assert [LOG] == world.left_behind
    with pytest.raises(ProcessLookupError):
        os.kill(int((world.folder / "pid").read_text()), signal.SIGCONT)


def test_a_compiler_that_hangs_is_told_and_then_ended(world, monkeypatch, golden):
    ninja = world.bin / "ninja"
    whole = ninja.read_text()
    world.ninja(end=f"echo $$ > {world.folder}/pid; exec sleep 600")

    with monkeypatch.context() as patch:
        patch.setattr(building, "STALL_S", 0.2)
        patch.setattr(building, "SILENCE_S", 1.0)
        with pytest.raises(ToolFailed, match="nothing was written") as caught:
            world.build()
    with pytest.raises(ProcessLookupError):
        os.kill(int((world.folder / "pid").read_text()), signal.SIGCONT)
    left = world.left_behind
    ninja.write_text(whole)

    phases = dict.fromkeys(phase for phase, _, _ in world.progress)
    assert golden == [phase for phase in phases if "after step 1" in phase]
    assert "CC=clang CXX=clang++ codeneedle llama" in caught.value.hint
    assert [LOG] == left
    assert world.build().is_dir()


def test_logs_of_two_builds_at_once_are_apart(world):
    world.ninja(end="echo 'a.c:1: error: no such thing'; exit 1")
    for backend in (None, backends.backend_named("cpu")):
        with pytest.raises(ToolFailed):
            world.build(backend=backend)

    assert ["b11434-4-cpu.compiling.log", LOG] == world.left_behind


def test_a_second_builder_waits_for_the_first(world, golden):
    folder = release.built_folder()
    folder.parent.mkdir(parents=True)
    lock = folder.with_name("b11434-4.lock").open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    waits = threading.Event()

    second = threading.Thread(target=world.build, args=(lambda _: waits.set(),))
    second.start()
    assert waits.wait(30)
    for name in PROGRAMS:
        script(folder / name, "")
    lock.close()
    second.join(30)

    assert golden == [*{phase for phase, _, _ in world.progress}]


def test_a_full_disk_is_noticed_first(world, leave_free):
    leave_free(1 << 20)

    with pytest.raises(FolderUnusable, match="MiB are free"):
        world.build()


def test_a_missing_compiler_is_noticed_first(world, monkeypatch, golden):
    monkeypatch.setenv("PATH", str(world.folder / "nowhere"))

    with pytest.raises(ToolMissing) as caught:
        world.build()

    assert golden == str(caught.value)
    mend = "xcode-select" if sys.platform == "darwin" else "build-essential"
    assert mend in caught.value.hint


def test_a_mac_without_its_command_line_tools_is_noticed_first(world, monkeypatch):
    """Its compilers are there all the same, and ask to install the tools."""
    missing = subprocess.CompletedProcess([], returncode=2)
    monkeypatch.setattr(processes, "run_for_output", lambda *_, **__: missing)
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(ToolMissing) as caught:
        world.build()

    assert "xcode-select" in caught.value.hint


def test_an_old_cmake_is_not_used(world):
    newer = world.cmake("4.0.0").replace('"$2/bin"', '"$2/bin"; touch /dev/null')
    script(world.folder / "newer-cmake", newer)
    script(world.bin / "cmake", world.cmake("3.16.3"))
    script(
        world.bin / "pip",
        'if [ "$1" = install ]; then\n'
        'while [ "$1" != --target ]; do shift; done\n'
        'mkdir -p "$2/cmake/data/bin" "$2/bin"\n'
        f'cp {world.folder}/newer-cmake "$2/cmake/data/bin/cmake"\n'
        f'cp {world.bin}/ninja "$2/bin/ninja"\n'
        f'else cp {world.archive} "{dest()}"; fi',
    )

    world.build()

    assert "/tools/bin/ninja" in (world.folder / "cmake.said").read_text()


@pytest.mark.parametrize(("free_gib", "jobs"), [(64, 8), (7, 3), (1, 1)])
def test_jobs_are_bounded_by_memory(free_gib, jobs):
    assert jobs == building.compiler_jobs(cores=8, free_bytes=free_gib << 30)


def test_the_tree_of_an_archive_is_unpacked_alone(tmp_path):
    pack(tmp_path / "a.tar.gz")

    tree = unpack_llama_cpp(tmp_path / "a.tar.gz", into=tmp_path / "into")

    files = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert {"LICENSE", "scripts/run.sh"} == files
    assert os.access(tree / "scripts" / "run.sh", os.X_OK)
    assert not os.access(tree / "LICENSE", os.X_OK)


def test_build_tools_inherit_no_variable_that_leads_them_elsewhere():
    env = build_tool_environment(
        {
            "PATH": "/bin",
            "HTTPS_PROXY": "proxy",
            "CXXFLAGS": "-O2",
            "PYTHONPATH": "/elsewhere",
            "MAKEFLAGS": "-j8",
            "LLAMA_ARG_CTX_SIZE": "1",
            "NINJA_STATUS": "odd",
        }
    )

    assert {"PATH", "HTTPS_PROXY", "CXXFLAGS"} <= env.keys()
    assert not {"PYTHONPATH", "MAKEFLAGS", "LLAMA_ARG_CTX_SIZE"} & env.keys()
    assert "[%f/%t] " == env["NINJA_STATUS"]
