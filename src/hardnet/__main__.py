"""The `hardnet` command and `python -m hardnet`: Ctrl-C exits with 130 from the start."""

import os
import signal


def main() -> None:
    """Run the command line."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where it is ignored, as in the background
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # nothing to clean up yet
    from hardnet.cli.app import main as run

    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
