"""The laws of every store, and the stores on which they run."""
