"""Any evaluation that speaks to OpenAI's API, as a probe: sample by sample."""
