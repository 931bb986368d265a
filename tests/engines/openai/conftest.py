"""Fixtures of the tests of servers with OpenAI's API."""

import pytest
from fake_openai import MODEL

from codeneedle.engines.openai.client import OpenAi


@pytest.fixture
def talk():
    """Connects to a server; ``paused`` are the seconds that it waited."""

    class Talk:
        def __init__(self):
            self.paused = []

        def __call__(self, server, **options):
            client = OpenAi(server.url, **{"silence_s": 30.0, **options})
            client.model = MODEL
            client.sleep = self.paused.append
            return client

    return Talk()
