"""Recall: functions of the corpus, written verbatim or forced token by token."""
