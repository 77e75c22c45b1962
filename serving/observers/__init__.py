"""The log of what was served: `message` is one candidate of it, `log` writes it beside answers."""
