"""
Transcripts: how well each pair predicts what an assistant said in recorded
conversations, tool calls, reasoning, code and other text apart.
"""
