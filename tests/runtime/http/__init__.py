"""Tests of headrace/runtime/http."""
