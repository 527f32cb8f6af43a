"""The exceptions a user is meant to read: all of them are a HardnetError."""


class HardnetError(Exception):
    """Something the user can fix: the message names the file or option and the fix.

    The command line prints it as one line and exits with code 1; Python callers may catch it.
    """


class InputError(HardnetError, ValueError):
    """An argument that makes no sense: a number out of range, an array of the wrong shape."""


class DivergedError(HardnetError):
    """A training run left the finite numbers: a result of its settings, not a mistake in them."""


class MissingExtraError(HardnetError, ImportError):
    """A part of the package needs an optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f'{package} is not installed; it comes with: pip install "hardnet[{extra}]"'
        )
