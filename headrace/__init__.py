"""Streaming online learning of click-through rates, from log events to served predictions."""
