"""Tests of ingest/decoding."""
