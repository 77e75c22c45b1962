"""The output of commands on a terminal: progress bars, tables and wrapped messages.

`progress_bars` shows the steps of commands that take minutes, and `tables` the results of others,
which `json_lines` prints for programs. `wrapped_text` wraps messages at the width of the terminal,
and `waiting_note` says what a command waits for.
"""
