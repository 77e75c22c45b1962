"""Decodes JSON events into columns: one kernel finds the declared fields in their bytes.

This folder is a low-level optimization; `json_scanner` has the reason. `decoder` is its interface
and passes odd events to `ingest.events.read_event`, the complete reader; `json_tokens` has the
grammar of JSON.
"""
