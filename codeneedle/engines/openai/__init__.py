"""Servers with OpenAI's API: started by a command of the user's, or running already."""
