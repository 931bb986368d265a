"""The divergence probe, on a stand-in of llama-perplexity and on the real one."""

import pytest

pytest.skip("rewritten with the tools", allow_module_level=True)
