"""The memory that a chat template may take in the child."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HUNGRY = """
import resource
from jinja2.sandbox import ImmutableSandboxedEnvironment
import pytest
from codeneedle.engines.mlx.child import limited_memory

text = (
    "{% set ns = namespace(x='a') %}{% for i in range(40) %}"
    "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
)
model = bytearray(1 << 30)
try:
    with limited_memory(1 << 29):
        small = bytearray(1 << 28)
        ImmutableSandboxedEnvironment().from_string(text).render()
except MemoryError:
    model += bytes(1 << 30)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("stopped", peak < 5 << 20)
"""


def test_a_template_may_take_so_much_more_than_the_model_and_others_all_of_it():
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY], capture_output=True, text=True, check=False
    )

    assert "stopped True\n" == done.stdout, done.stderr
