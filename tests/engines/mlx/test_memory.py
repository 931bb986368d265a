"""The memory that a chat template may take in the child that only counts."""

import subprocess
import sys

HUNGRY = """
from jinja2.sandbox import ImmutableSandboxedEnvironment
from codeneedle.engines.mlx.child import limit_memory

limit_memory(1 << 30)
text = (
    "{% set ns = namespace(x='a') %}{% for i in range(40) %}"
    "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
)
try:
    ImmutableSandboxedEnvironment().from_string(text).render()
except MemoryError:
    print("stopped")
"""


def test_a_template_that_takes_all_memory_is_stopped():
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY], capture_output=True, text=True, check=False
    )

    assert "stopped\n" == done.stdout
