"""The llama.cpp engine."""
