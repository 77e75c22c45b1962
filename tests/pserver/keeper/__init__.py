"""Tests of pserver/keeper."""
