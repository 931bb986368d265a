"""Memory of accelerators: asked of a stand-in for the driver's program."""

import pytest
from programs import script

from codeneedle.system import machine
from codeneedle.system.machine import used_bytes

MIB = 1 << 20


@pytest.fixture(autouse=True)
def forgetful():
    """The program is looked for anew in each test."""
    machine.driver.cache_clear()
    yield
    machine.driver.cache_clear()


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts a program with the driver's name, and a body of one's own, on the path."""
    monkeypatch.setattr(machine.sys, "platform", "linux")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def installed(body):
        return script(tmp_path / "nvidia-smi", body)

    return installed


def test_a_process_has_what_it_holds_on_all_devices(driver):
    """
    There is a line per process and device; those of others do not count.
    """
    driver("printf '41, 1000\\n42, 5120\\n42, 1024\\n'")

    assert 6144 * MIB == used_bytes(42)


def test_the_question_asks_for_bare_numbers(driver, tmp_path):
    """
    The driver is asked for pid and memory, without heading and unit.
    """
    driver(f"echo \"$@\" > {tmp_path}/asked; echo '42, 1'")

    used_bytes(42)

    asked = (tmp_path / "asked").read_text().split()
    assert list(machine._QUESTION) == asked


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
def test_what_nobody_tells_is_unknown(driver, body):
    """
    Other processes, no size, no driver: none of them is zero bytes.
    """
    driver(body)

    assert None is used_bytes(42)


def test_without_the_program_it_is_unknown(tmp_path, monkeypatch):
    """
    Most machines have no such driver.
    """
    monkeypatch.setenv("PATH", str(tmp_path))

    assert None is used_bytes(42)


def test_the_program_is_looked_for_once(tmp_path, monkeypatch):
    """
    Where there is none, asking again costs nothing.
    """
    looked = []
    monkeypatch.setattr(machine.sys, "platform", "linux")
    monkeypatch.setattr(machine.shutil, "which", looked.append)

    assert [None, None] == [used_bytes(41), used_bytes(42)]
    assert ["nvidia-smi"] == looked


def test_a_driver_that_hangs_is_given_up(driver, monkeypatch):
    """
    A stuck driver costs a moment, never the sweep.
    """
    monkeypatch.setattr(machine, "ASK_TIMEOUT_S", 0.05)
    driver("exec sleep 60")

    assert None is used_bytes(42)


def test_macos_is_not_asked(driver, monkeypatch):
    """
    Its accelerators share the memory of the machine.
    """
    driver("echo '42, 1'")
    monkeypatch.setattr(machine.sys, "platform", "darwin")

    assert None is used_bytes(42)
