"""What can go wrong, in words for the person who can fix it.

A `UserError` is a mistake in the input: the command line prints its sentence and exits with code 2.
The sentence names the file, key or client, and the fix.
"""

import difflib
from collections.abc import Iterable


class FedsynthError(Exception):
    """Base of every error this package raises on purpose."""


class UserError(FedsynthError):
    """Bad input; the message is one clear sentence that says what to change."""


class ConfigError(UserError):
    """An experiment file or an override that cannot be used."""


class DataError(UserError):
    """A data set that cannot be read, or a split that cannot be made."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint such as ' Did you mean "alpha"?', or the list of known words when nothing is near."""
    choices = sorted(known)
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if close:
        return f' Did you mean "{close[0]}"?'
    return f" Known: {', '.join(choices)}." if choices else ""
