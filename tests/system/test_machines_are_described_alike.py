"""A machine is described in words that stay the same."""

import dataclasses
import datetime as dt

import psutil
import pytest
from programs import script

from codeneedle.system import machine, process_memory
from codeneedle.system.machine import MachineFacts, facts, now
from codeneedle.system.process_memory import nvidia_memory_bytes

MIB = 1 << 20

FACTS = MachineFacts(
    system="Debian GNU/Linux 12",
    architecture="x86_64",
    processor="AMD EPYC 7B13",
    physical_cores=4,
    logical_cores=8,
    usable_cores=8,
    memory_bytes=(64 << 30) - 300_000_000,
    available_bytes=1 << 30,
    python="3.12.1",
)


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """The folder of a container's limits, empty."""
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "cores"),
    [
        ({}, "8 cores"),
        ({"available_bytes": 7, "python": "3.13.0"}, "8 cores"),
        ({"usable_cores": 2}, "2 of 8 cores"),
    ],
)
def test_a_phrase_holds_what_numbers_depend_on(changes, cores):
    """Memory is rounded, because the kernel keeps back a little of it."""
    expected = f"AMD EPYC 7B13, x86_64, {cores}, 64 GiB, Debian GNU/Linux 12"

    assert expected == dataclasses.replace(FACTS, **changes).phrase()


def test_this_machine_can_be_described():
    found = facts()

    assert 1 <= found.usable_cores <= found.logical_cores
    assert 0 < found.available_bytes <= found.memory_bytes
    assert found.system
    assert found.architecture


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("junk", None)],
)
def test_a_container_limits_the_cores(cgroup, limit, cores):
    """Half a core is one, no limit is none, nonsense is ignored."""
    (cgroup / "cpu.max").write_text(f"{limit}\n")

    assert cores == machine._container_core_limit()
    assert machine.usable_cores() <= (cores or 1_000_000)


def test_a_container_limits_the_memory(cgroup):
    (cgroup / "memory.max").write_text("1073741824\n")
    (cgroup / "memory.current").write_text("1000000000\n")
    limited = facts()
    (cgroup / "memory.max").write_text("max\n")

    assert (1 << 30, 73_741_824) == (limited.memory_bytes, limited.available_bytes)
    assert psutil.virtual_memory().total == facts().memory_bytes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor : 0\nmodel name\t: Intel(R)   Xeon(R)\n", "Intel(R) Xeon(R)"),
        ("processor : 0\nModel : Raspberry Pi 5\n", "Raspberry Pi 5"),
        ("nothing", ""),
    ],
)
def test_a_processor_is_named_as_linux_names_it(text, name):
    """Boards call it something else, some do not call it anything."""
    assert name == machine.parse_processor_name(text)


@pytest.fixture(autouse=True)
def forgetful():
    """The program is looked for anew in each test."""
    process_memory.nvidia_smi_path.cache_clear()
    yield
    process_memory.nvidia_smi_path.cache_clear()


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts a program with the driver's name, and a body of one's own, on the path."""
    monkeypatch.setattr(process_memory.sys, "platform", "linux")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def installed(body):
        return script(tmp_path / "nvidia-smi", body)

    return installed


def test_a_process_has_what_it_holds_on_all_devices(driver, tmp_path):
    driver(f"echo \"$@\" > {tmp_path}/asked; printf '41, 9\\n42, 5120\\n42, 1024\\n'")

    assert 6144 * MIB == nvidia_memory_bytes(42)
    assert list(process_memory._QUESTION) == (tmp_path / "asked").read_text().split()


@pytest.mark.parametrize(
    "body",
    [
        "echo '41, 1000'",
        "echo '42, [N/A]'",
        "echo 'No running processes found'",
        "echo 'has failed because it could not communicate'; exit 9",
        "exit 0",
    ],
)
def test_without_a_size_of_the_process_it_is_unknown(driver, body):
    driver(body)

    assert None is nvidia_memory_bytes(42)


def test_the_program_is_looked_for_once(driver):
    """One that is installed later is not asked."""
    before = nvidia_memory_bytes(42)
    driver("echo '42, 1'")

    assert (None, None) == (before, nvidia_memory_bytes(42))


@pytest.mark.parametrize(
    ("platform", "body"), [("linux", "exec sleep 60"), ("darwin", "echo '42, 1'")]
)
def test_a_driver_that_hangs_is_given_up_and_macos_is_not_asked(
    driver, monkeypatch, platform, body
):
    """Accelerators of macOS share the memory of the machine."""
    monkeypatch.setattr(machine, "ASK_TIMEOUT_S", 0.05)
    driver(body)
    monkeypatch.setattr(process_memory.sys, "platform", platform)

    assert None is nvidia_memory_bytes(42)


def test_the_time_of_day_has_its_zone():
    assert dt.timedelta(0) == dt.datetime.fromisoformat(now()).utcoffset()
    assert len("2026-01-31T23:59:59+00:00") == len(now())
