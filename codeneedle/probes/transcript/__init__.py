"""
Transcripts: how well each pair predicts the assistant's turns of recorded
conversations, by class of tokens: tool calls, reasoning, code and other text.
"""
