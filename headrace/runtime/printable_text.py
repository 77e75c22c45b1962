"""Escapes text from topics and clients before a terminal shows it.

A terminal obeys control characters: a producer's event could set its title, clear its screen or
write commands. Control characters of bidirectional text show a name in another order.
"""


def printable(text: str) -> str:
    """Return the text with escapes in place of characters that do not print; spaces stay."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
