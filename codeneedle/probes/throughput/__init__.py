"""Throughput: prompt and generation speed by depth."""
