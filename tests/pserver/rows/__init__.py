"""Tests of pserver/rows."""
