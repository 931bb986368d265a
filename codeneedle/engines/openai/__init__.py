"""The engines of servers with OpenAI's API."""
