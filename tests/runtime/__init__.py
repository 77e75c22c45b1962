"""Tests of headrace/runtime."""
